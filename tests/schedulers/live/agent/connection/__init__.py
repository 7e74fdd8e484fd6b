"""Tests of the connection of an agent to its controller."""
