"""The loop, shown on one machine: robots fail, what a person did about it becomes data, and they do better."""
