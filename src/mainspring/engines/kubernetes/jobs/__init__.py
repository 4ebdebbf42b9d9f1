"""What an allocation is there: a claim, its orders, a Job of one pod a node; and what is seen of them."""
