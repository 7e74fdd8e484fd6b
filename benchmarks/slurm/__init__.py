"""Replay of jobs in a real Slurm whose clock runs faster: waiting times by the limits of jobs."""
