"""Policies as they are served: functions, checkpoints, releases, and what LeRobot saved."""
