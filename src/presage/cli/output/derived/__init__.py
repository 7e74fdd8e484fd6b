"""Figures that follow from the forecasts of a job: tokens per second, data stalls."""
