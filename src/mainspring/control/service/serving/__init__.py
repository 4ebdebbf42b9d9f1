"""Services as people ask for, change and see them."""
