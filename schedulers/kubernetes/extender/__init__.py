"""Scheduler extender: HTTP service that kube-scheduler calls to filter and rank nodes."""
