"""Ranks of jobs, as they register and report."""
