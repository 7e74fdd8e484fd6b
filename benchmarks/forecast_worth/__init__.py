"""Value of forecasts to schedulers, simulated."""
