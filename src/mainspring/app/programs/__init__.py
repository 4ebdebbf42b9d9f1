"""What our own jobs run, as anybody's would: `python -m mainspring.app.programs.record`, `train` or `evaluate`."""
