"""Promotion gate: comparison of a challenger with the champion on held-out jobs."""
