"""Arbitration of in-network-computing switches, and the agreement of ranks on it: pure functions."""
