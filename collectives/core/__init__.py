"""Arbitration of switches with in-network computing, and agreement on it: pure functions."""
