"""From the topics of a log to episodes: recipe, streams, segments, alignment, cameras, what is lost."""
