"""Worker side of an elastic job: connections, gradients and training state."""
