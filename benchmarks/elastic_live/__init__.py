"""Elastic jobs on a live cluster against the same jobs in the simulator."""
