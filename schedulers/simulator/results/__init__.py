"""Results of a simulation: event log, timeline, metrics and tables."""
