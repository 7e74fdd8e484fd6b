"""Reported outcomes: read from outcome logs, checked, and turned into tables."""
