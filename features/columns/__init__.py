"""Feature matrix: the meaning of each column, and its vectorized computation."""
