"""Cost of changing the number of workers of an elastic job."""
