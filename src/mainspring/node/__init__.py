"""The process on each node of an allocation: starts ranks, keeps their snapshots and, on one node, leads.

Nothing is imported here, so that small child processes start quickly; the program `agent` imports `agent`.
"""
