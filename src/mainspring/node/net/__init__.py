"""Connections of an agent: framed messages, raw bytes between agents, calls to the controller."""
