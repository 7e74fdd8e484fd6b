"""Controller of a live cluster: accepts jobs, assigns them to nodes, and journals every change."""
