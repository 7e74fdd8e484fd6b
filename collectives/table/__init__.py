"""Decisions of one rank in shared memory, for readers that cannot call Python."""
