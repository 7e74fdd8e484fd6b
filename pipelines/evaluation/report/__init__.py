"""Evaluation report: one self-contained HTML page."""
