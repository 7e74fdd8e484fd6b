"""Packing of single-device jobs by forecasts."""
