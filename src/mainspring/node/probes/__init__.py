"""Probes: what a node shows of how it is, by its kernel, its links, its chips, and by work that it is put to.

Nothing is imported here, so that the process that watches an idle node stays small.
"""
