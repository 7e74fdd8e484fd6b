"""Clusters from files: their nodes, and how their devices hang together."""
