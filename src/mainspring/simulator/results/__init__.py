"""What replays come to: measures, fairness, comparisons, plots."""
