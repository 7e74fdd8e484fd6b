"""Presage's server and other servers on one machine."""
