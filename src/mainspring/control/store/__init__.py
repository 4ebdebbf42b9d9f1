"""The store: tables, transactions, and the values that are read from and written to them."""
