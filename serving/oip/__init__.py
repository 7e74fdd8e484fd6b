"""The Open Inference Protocol: each predictor of a release as a model that Triton's clients know.

What a model says is its calibrated quantiles as they are. Whether a job is in domain, wider
intervals for strangers, start-up times and fits are the business of ``presage.v1``.
"""
