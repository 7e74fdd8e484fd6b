"""Fit and evaluation of the hazard model."""
