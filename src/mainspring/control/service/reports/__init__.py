"""What is read rather than done: what time went into, what ranks reported, what there is to learn from."""
