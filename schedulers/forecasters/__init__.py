"""Forecasters: one file each."""
