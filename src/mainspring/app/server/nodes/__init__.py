"""What a server does for nodes."""
