"""A real Slurm for tests and benchmarks."""
