"""Job families for text and speech."""
