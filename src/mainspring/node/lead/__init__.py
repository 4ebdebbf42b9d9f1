"""The lead's state machine: pure decisions over plain values; `lead_host` does what they ask for."""
