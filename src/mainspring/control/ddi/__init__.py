"""What robots call over HTTP."""
