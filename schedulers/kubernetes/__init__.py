"""Forecasts and gangs on Kubernetes: a scheduler extender, and a gate that plans gangs."""
