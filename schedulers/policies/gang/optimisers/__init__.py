"""Optimisers that choose the devices of a gang (requirement D)."""
