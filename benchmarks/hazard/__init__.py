"""Accuracy of the hazard model on a published fault trace."""
