"""Registry of predicted quantities: names, units, targets, bounds, fields and titles."""
