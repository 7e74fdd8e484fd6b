"""Feature matrix: what each column means, and how it is computed for many rows at once."""
