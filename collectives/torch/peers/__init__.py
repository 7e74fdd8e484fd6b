"""Messages between the ranks of a job, which need neither the arbiter nor the switch."""
