"""Benchmark of the scaling of jobs to several devices."""
