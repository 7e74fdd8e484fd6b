"""Conformal calibration of prediction intervals, and the out-of-domain test."""
