"""``presage models``: the releases in a model registry."""
