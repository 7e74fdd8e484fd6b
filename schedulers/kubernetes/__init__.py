"""Kubernetes: gangs behind a scheduling gate, and an extender of its scheduler."""
