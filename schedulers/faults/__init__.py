"""Nodes that fail and are repaired: from files, traces and distributions."""
