"""The loop: observe, plan, commit, act."""
