"""Programs that robots call: policies served, and the proxy before them."""
