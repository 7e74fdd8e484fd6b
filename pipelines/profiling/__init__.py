"""Measurement of training jobs: the job zoo, the runner, the samplers."""
