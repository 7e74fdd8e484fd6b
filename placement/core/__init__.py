"""Vectorized simulation of batches of jobs on failing GPUs, and placement rules on it."""
