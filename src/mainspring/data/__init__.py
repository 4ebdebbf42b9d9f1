"""Robot data: ingest, episodes, catalog, training views, loader."""
