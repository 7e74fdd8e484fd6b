"""A simulated cluster: its world, its events, and what came of them."""
