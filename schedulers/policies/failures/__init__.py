"""Policies that place jobs by the failure rates of devices, and the ones to compare them with."""
