"""Training jobs that share a switch, live and simulated."""
