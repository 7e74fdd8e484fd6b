"""``presage inc``: commands of switches with in-network computing."""
