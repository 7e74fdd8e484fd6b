"""Kubernetes backend: a gang gate, and an extender of kube-scheduler."""
