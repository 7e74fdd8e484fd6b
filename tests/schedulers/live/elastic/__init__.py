"""Tests of elastic jobs of a live cluster, with real processes."""
