"""What a job, a device and a co-location are, and the numbers that describe them."""
