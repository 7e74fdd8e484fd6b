"""Failures of nodes and devices: outages, features of their history, and the hazard model."""
