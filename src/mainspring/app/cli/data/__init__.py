"""`ms data`: recordings, datasets, training views."""
