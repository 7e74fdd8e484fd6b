"""Growth of the live controller's work with the number of nodes."""
