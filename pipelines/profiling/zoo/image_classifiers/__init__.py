"""Job families that classify images."""
