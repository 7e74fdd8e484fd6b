"""``presage trace``: traces of jobs."""
