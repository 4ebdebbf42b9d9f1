"""What Prometheus is told: of the lab, read when it asks, and of this server, counted as it goes."""
