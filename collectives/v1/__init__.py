"""Protocol of the arbiter of switches."""
