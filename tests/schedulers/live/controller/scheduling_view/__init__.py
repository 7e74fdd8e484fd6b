"""Tests of the scheduling view, which is updated while nodes come and go."""
