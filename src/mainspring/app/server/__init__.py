"""Programs that run without a person: server, agent, engine hosts, and what our own jobs run."""
