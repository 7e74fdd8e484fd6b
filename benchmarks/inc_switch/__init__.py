"""AllReduce through the software switch against a ring, over links of a limited rate."""
