"""Prediction client, and the features of jobs that it sends."""
