"""Rendering of answers: tables and panels for people, JSON for machines."""
