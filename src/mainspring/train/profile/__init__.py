"""Profiles: what a trace of a few steps says of where their time goes."""
