"""Node agent of a live cluster: runs the tasks that the controller assigns to its node."""
