"""Access to a Kubernetes API server: lists, watches, and a cache of a cluster's objects."""
