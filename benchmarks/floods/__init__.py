"""Floods of servers by clients without a token."""
