"""The edge: command line, HTTP server, SDK and entry points; joins adapters to ports and reads the environment."""
