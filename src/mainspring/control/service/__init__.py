"""What the API serves: answers to agents, leads and people."""
