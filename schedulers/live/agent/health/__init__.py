"""Health of a node's devices: its sources on the machine, and the signals to report."""
