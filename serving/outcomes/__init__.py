"""Outcomes of jobs: reports, the outcome log, and drift computed from them."""
