"""``presage cluster ps`` and ``top``: tables of jobs and nodes."""
