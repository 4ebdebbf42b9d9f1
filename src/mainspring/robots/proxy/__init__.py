"""The proxy of services: one address for all replicas of each, and no request lost with one of them."""
