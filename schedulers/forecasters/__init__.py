"""Whoever foretells: one file each."""
