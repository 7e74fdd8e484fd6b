"""Sharing devices with quality of service: rules of controller and node agent, all pure."""
