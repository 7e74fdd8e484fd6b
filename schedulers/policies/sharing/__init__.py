"""GPU sharing with quality of service (requirements C1 to C7, N1 to N9)."""
