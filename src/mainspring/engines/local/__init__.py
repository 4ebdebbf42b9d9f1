"""The local engine: one pretended cluster, whose agents are processes of this machine."""
