"""Notices: where teams want to be told of their jobs, what they are told, and how it gets there."""
