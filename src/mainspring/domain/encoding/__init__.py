"""How values are written; how they are read is `codec`'s."""
