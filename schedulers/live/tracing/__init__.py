"""OpenTelemetry spans of jobs on a live cluster, below the trace of their submission."""
