"""Health of devices, read from drivers, kernel logs and Kubernetes nodes; pure functions."""
