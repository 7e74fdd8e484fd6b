"""Traces of jobs: one file a format, what they have in common, and more jobs like those of one."""
