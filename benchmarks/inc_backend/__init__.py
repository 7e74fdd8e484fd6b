"""Cost of the backend presage_inc over gloo."""
