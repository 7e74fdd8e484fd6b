"""GPU-sharing policies on a live cluster and in the simulator."""
