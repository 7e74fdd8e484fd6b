"""Failures of devices: their history and the hazards that follow from it."""
