"""Offsets between forecasts and measurements, learnt from reported outcomes between releases."""
