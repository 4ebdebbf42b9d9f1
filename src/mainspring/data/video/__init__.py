"""Video as packets with an explicit index."""
