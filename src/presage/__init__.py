"""Presage foretells what a deep-learning job will do before it runs."""

__version__ = "0.1.0"
