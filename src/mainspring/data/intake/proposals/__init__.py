"""Recipe proposals: what a source holds, and how it could be taken in."""
