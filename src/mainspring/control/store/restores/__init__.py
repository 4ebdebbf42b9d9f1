"""A store that goes back in time: put back from a back-up, and what others know beyond it."""
