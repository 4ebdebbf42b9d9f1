"""How nodes and their health look to people."""
