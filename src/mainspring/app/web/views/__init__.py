"""Views: each asks the API, and returns what a template draws."""
