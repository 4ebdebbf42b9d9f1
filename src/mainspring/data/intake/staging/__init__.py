"""Sources that lie elsewhere (in archives, object stores, behind HTTPS), given a local folder to be read from."""
