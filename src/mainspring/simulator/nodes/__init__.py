"""Simulated nodes: agents, links and ranks on virtual time, around the real lead."""
