"""Free capacity of a cluster: idle devices, shared devices, and what jobs request."""
