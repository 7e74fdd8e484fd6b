"""Ray: resources of trials by their forecasts, and a live cluster on the nodes of a Ray cluster."""
