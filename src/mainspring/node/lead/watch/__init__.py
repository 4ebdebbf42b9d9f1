"""What the lead learns by watching ranks: progress, pace, hangs, stragglers, failures, where time went."""
