"""Processes: children, worker pools, and functions that a user names."""
