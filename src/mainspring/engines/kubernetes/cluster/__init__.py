"""What a cluster is: its settings, its nodes and where they stand, what others use of them."""
