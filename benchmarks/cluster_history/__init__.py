"""Histories of a live cluster under random faults, checked against laws."""
