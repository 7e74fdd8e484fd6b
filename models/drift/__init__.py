"""Drift detection: whether outcomes still follow the forecasts of a release."""
