"""Offsets of forecasts, learned from reported outcomes between releases."""
