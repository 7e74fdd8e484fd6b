"""Time line of the switches: recent AllReduces of all jobs, and their picture."""
