"""Scheduling policies, one file or package each, and their shared parts."""
