"""Forecast of a job's step time, given by its script instead of environment variables."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from presage.collectives.phases.prior import Prior
from presage.collectives.torch.backend import IncProcessGroup


def set_forecast(
    step_time_s: float,
    gradients: nn.Module | int,
    step_time_interval_s: tuple[float, float] | None = None,
) -> None:
    """Set the forecast by which the arbiter predicts the first iterations of this job.

    Each rank calls it before the first iteration. It does nothing in jobs without an arbiter.

    Parameters
    ----------
    step_time_s : float
        Predicted duration of an iteration in seconds.
    gradients : nn.Module or int
        Model whose parameters are trained, wrapped by DDP or not; or the bytes of all gradients.
    step_time_interval_s : (float, float), optional
        Interval of ``step_time_s``; a quarter to each side by default.

    Raises
    ------
    ValueError
        A value is 0, negative or not finite, or the step time is outside its interval.
    """
    size_bytes = gradients if isinstance(gradients, int) else gradient_bytes(gradients)
    prior = Prior(step_time_s, size_bytes, step_time_interval_s)
    group = dist.group.WORLD
    if isinstance(group, IncProcessGroup):
        group.set_prior(prior)


def gradient_bytes(model: nn.Module) -> int:
    """Return the bytes of the gradients of a model's trained parameters."""
    trained = [one for one in model.parameters() if one.requires_grad]
    return sum(one.numel() * one.element_size() for one in trained)
