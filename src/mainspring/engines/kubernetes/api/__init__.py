"""How the API of a cluster is reached and asked: credentials, calls, lists in pages, watches."""
