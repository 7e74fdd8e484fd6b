"""Runs training jobs and measures them: the job zoo, the runner, the samplers."""
