"""Open Inference Protocol: each predictor of a release as a model for clients of Triton.

The output of a model is its calibrated quantiles. Domain checks, interval widening for
out-of-domain jobs, start-up times and memory fit are part of ``presage.v1`` only.
"""
