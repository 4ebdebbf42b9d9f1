"""The agent on a robot: installs what is signed, goes back by itself, survives power loss."""
