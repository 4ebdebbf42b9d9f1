"""The process on each node of an allocation: starts ranks, keeps their snapshots, and, on one node, leads.

Nothing is imported here, so that the small child processes of an agent start quickly; `app.agent` imports `agent`.
"""
