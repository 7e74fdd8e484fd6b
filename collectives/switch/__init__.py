"""Software aggregator that stands in for a switch that sums AllReduces, and its client."""
