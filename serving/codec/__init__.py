"""Translation between protocol messages and domain values."""
