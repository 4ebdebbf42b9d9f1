"""Snapshots of ranks: kept in shared memory, copied to peers, stored, and found again for a restore."""
