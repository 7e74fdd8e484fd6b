"""Readers of cluster files: nodes, and the topology of their devices."""
