"""Fit on one published table, score on another: forecasts of what training has never seen."""
