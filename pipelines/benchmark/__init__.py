"""Benchmarks: fit on one published table, and score forecasts of unseen rows of another."""
