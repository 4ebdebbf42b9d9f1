"""Entitlement and queue order."""
