"""Threads of the server that leads: what is told to teams, what is evaluated by itself."""
