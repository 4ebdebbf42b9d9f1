"""Accounts of what allocated time went into."""
