"""Processes of an arbiter domain for tests."""
