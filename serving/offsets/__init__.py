"""Offsets of forecasts, learnt from reported outcomes between releases."""
