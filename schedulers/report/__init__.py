"""A page that shows what became of a trace under each policy."""
