"""Elastic jobs of a live cluster: their workers on nodes, their leaders, and reasons of sizes."""
