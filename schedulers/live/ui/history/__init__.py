"""Pages with charts of the history of a cluster, and with its ended jobs."""
