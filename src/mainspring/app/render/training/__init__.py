"""What people see of recipes and of plans for them."""
