"""What controller, node agents and users of a live cluster have in common."""
