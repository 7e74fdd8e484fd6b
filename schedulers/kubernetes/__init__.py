"""Kubernetes: forecasts and gangs beside its own scheduler."""
