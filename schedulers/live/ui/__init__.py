"""Web page of a live cluster, read-only."""
