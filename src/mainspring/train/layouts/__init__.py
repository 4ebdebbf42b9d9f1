"""Weights in the layouts of others: tables, and what reads and writes by them."""
