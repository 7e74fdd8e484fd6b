"""Elastic jobs that share devices, against one job on each device."""
