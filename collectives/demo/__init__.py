"""Real DDP jobs that share one switch on this machine, in an emulated network."""
