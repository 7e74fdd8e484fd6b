"""A node of the live cluster: each task is a process, with a small one beside it that answers."""
