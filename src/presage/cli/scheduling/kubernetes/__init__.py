"""``presage kubernetes``: gang scheduling and forecasts for a Kubernetes cluster."""
