"""Cluster simulator: ground truth, events, metrics, scenarios and sweeps."""
