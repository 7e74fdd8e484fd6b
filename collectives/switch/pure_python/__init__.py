"""Pure-Python aggregator, for machines without a C compiler."""
