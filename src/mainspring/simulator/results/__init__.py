"""Results of replays: measures, fairness, comparisons, plots."""
