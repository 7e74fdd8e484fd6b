"""Isolation of jobs on a node: accounts, limits, environment, control groups, measured usage."""
