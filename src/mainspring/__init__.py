"""Mainspring: the operating system of a lab that trains robot foundation models."""
