"""Gangs and forecasts on a Kubernetes cluster: a gate that plans gangs, and a scheduler extender."""
