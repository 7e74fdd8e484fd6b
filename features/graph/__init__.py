"""Operator graph of a training step, and statistics, memory and roofline time computed from it."""
