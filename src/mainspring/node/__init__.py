"""What runs on each node of an allocation: agent, lead, arena keeper."""
