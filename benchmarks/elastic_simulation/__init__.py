"""Elastic jobs against jobs of a fixed size, simulated on measured speed-up curves."""
