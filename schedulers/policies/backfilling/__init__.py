"""Backfilling: later jobs start early where they delay no earlier job."""
