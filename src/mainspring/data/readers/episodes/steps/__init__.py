"""Formats that hold one value of each field a step: what becomes what, the same for all of them."""
