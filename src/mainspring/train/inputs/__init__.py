"""What a run reads: its sources opened and checked, batches as its policy sees them, statistics."""
