"""The agent on a robot as a program, `ms-edge`: a distribution of its own, of little more than the standard library."""
