"""Comparison of placement policies on failing GPUs."""
