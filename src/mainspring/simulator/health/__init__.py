"""Health of nodes on virtual time: a fleet's faults, what they cost, and what health that ships makes of them."""
