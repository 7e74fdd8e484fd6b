"""Measurement campaigns: settings, plan, progress, and their tables."""
