"""What users of a cluster may hold, and how their jobs are ordered: quotas and fair share."""
