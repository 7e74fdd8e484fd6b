"""Policies, simulator and live cluster that use the forecasts; they ask serving's client."""
