"""When jobs of a Slurm cluster start, simulated from its present state."""
