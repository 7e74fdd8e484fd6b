"""``presage cluster``: commands of a live cluster."""
