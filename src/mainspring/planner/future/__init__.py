"""The future of free capacity: reservations, backfill, expected starts."""
