"""Steps of a look at a cluster's set-up, and what to do where one fails."""

from __future__ import annotations

STEPS = (
    *("API", "rights", "namespace", "queues", "nodes", "prices", "claims and accounts"),
    *("image", "Mainspring in a pod", "clocks", "volumes", "server from a pod"),
)
