"""The controller: store, loop, API, accounting."""
