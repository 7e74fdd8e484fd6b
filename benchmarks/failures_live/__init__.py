"""Live cluster whose agents are killed by a drawn schedule against the same in the simulator."""
