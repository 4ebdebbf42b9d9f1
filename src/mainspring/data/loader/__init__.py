"""Batches in an order that is a pure function of the step."""
