"""Policies of live tests."""
