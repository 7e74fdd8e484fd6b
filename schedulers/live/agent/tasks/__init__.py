"""Tasks of a node: their folders, processes, shims and logs."""
