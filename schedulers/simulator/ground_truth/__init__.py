"""Ground truth of the simulator: true run times and slowdowns, also from measured models."""
