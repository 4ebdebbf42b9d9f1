"""Tables and the videos beside them: recipe, reading, proposal."""
