"""Parts that engines share: a non-blocking front, records on disk, processes, an agent's work folder."""
