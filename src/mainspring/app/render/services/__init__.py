"""Services on a screen."""
