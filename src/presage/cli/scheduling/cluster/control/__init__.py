"""``presage cluster cancel``, ``hold``, ``release``, ``requeue`` and ``priority``."""
