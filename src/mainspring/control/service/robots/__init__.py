"""Robots: who they are, what they are told by DDI, and rollouts to them."""
