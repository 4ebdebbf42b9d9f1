"""How answers look: tables and panels for people, JSON for machines."""
