"""What lies in the object store, read for people: samples of jobs, datasets."""
