"""Benchmark of retraining by the number of reported outcomes."""
