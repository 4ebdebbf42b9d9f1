"""Rules by which checkpoints are evaluated by themselves: kept, decided, carried out."""
