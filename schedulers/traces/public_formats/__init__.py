"""Readers of published traces: Philly, ITP and openb."""
