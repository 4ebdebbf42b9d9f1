"""Publishing gates: what must hold before a version is published."""
