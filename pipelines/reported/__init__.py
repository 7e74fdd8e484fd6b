"""Reported outcomes: read from outcome logs, checked, and converted to tables."""
