"""The object-store port, with a folder and obstore behind it."""
