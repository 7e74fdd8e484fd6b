"""Execution of measured runs: worker processes, locally or on a Ray cluster."""
