"""Gang gate: pods of a gang stay gated until the whole gang has a placement."""
