"""Trials of Ray Tune that share devices by forecasts, against trials on whole devices."""
