"""Learnt placement: one scorer shared by all jobs and one by all GPUs, for clusters of any size."""
