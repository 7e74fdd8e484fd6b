"""Extraction of an operator graph from a torch job, traced on the meta device."""
