"""Evaluation: out-of-fold forecasts, error tables, plots and the report page."""
