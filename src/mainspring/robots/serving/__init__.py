"""Policies served to robots: the server, its policies, and the client for a robot's control loop.

Nothing is imported here: a robot needs `client` alone, with NumPy, msgpack and websockets.
"""
