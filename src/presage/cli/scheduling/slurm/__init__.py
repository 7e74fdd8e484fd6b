"""``presage slurm``: forecasts for the jobs of a Slurm cluster."""
