"""Readers of what robots write: logs by topic, and datasets by episode."""
