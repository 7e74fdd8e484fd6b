"""``presage simulate`` and ``presage sweep``."""
