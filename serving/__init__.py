"""Forecasts to whoever asks: in process, or over gRPC."""
