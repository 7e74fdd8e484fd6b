"""``presage cluster when``: the predicted starts and ends of jobs."""
