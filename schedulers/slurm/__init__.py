"""Slurm: requests of submitted jobs set by forecasts, limits of running jobs, and outcomes."""
