"""Placement of jobs on devices that fail: a fast simulation core, published and learnt policies."""
