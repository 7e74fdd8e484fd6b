"""Sharing with quality of service on a simulated cluster of a thousand nodes."""
