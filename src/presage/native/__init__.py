"""C extension with the loops of the hot path; everything works without it, more slowly."""
