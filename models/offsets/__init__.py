"""Offsets between forecasts and measurements, learned from reported outcomes between releases."""
