"""Monitoring of running ranks: progress, snapshot interval, hangs, stragglers, failures, where time went."""
