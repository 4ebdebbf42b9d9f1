"""Programs of our own jobs, run as anybody's would: `python -m mainspring record`, `train` or `evaluate`."""
