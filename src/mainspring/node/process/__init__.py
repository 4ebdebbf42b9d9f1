"""Rank processes: started, bounded in memory, never orphaned, and where they stand."""
