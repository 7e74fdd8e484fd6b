"""Speed of the simulator."""
