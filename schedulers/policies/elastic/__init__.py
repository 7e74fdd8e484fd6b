"""Elastic jobs: sizes by predicted marginal speed-up."""
