"""The words of the house as frozen values; standard library only."""
