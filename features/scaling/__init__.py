"""Scaling of a job's step time with its numbers of GPUs and nodes."""
