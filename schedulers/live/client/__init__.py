"""Client of a live cluster's controller."""
