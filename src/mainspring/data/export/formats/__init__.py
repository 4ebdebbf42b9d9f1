"""The formats, each a value that knows what it cannot hold and which jobs write it."""
