"""What is read of the object store: samples of jobs, datasets."""
