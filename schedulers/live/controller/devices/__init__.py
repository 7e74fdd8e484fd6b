"""Health of single devices: the signals of agents, and the withdrawal of devices."""
