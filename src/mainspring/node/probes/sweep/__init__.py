"""Sweeps: nodes put to work, alone and in groups, to find which of them is at fault. Nothing is imported here."""
