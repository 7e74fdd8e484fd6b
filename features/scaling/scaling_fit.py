"""Correction of predicted steps by the steps that were measured at some sizes of the job.

The service applies it to the measured placements of a request, and the policies ``elastic`` and
``pollux`` to the measured paces of running jobs.
"""

from __future__ import annotations

import numpy as np

from presage.features.scaling.scaling_law import LINK_KINDS, ScaledSteps, ScalingLaw
from presage.system.arrays import Array

_MOST_LOG = 20.0  # of a factor: measurements may be absurd, but must not overflow
_ITERATIONS = 6  # of Gauss-Newton; the steps are nearly linear in the logarithms of the factors


class ScalingFit:
    """Step times of one job, given measurements of it: a Gaussian process around the law.

    The job multiplies the law's computation and its synchronization on each kind of link by
    factors of its own. Their logarithms have normal priors around 0, and each size deviates from
    the job's law by a residual that similar sizes share. The factors are those of the highest
    posterior density. Everything is in logarithms of seconds.

    Parameters
    ----------
    law : ScalingLaw
        Overlap and standard deviations.
    measured : ScaledSteps
        Predicted steps at the measured sizes; may be empty.
    measured_s : ndarray of shape (measured,)
        Measured steps, in the unit of the predicted ones.
    """

    def __init__(self, law: ScalingLaw, measured: ScaledSteps, measured_s: Array) -> None:
        self._law, self._measured = law, measured
        self._prior = np.diag(
            [law.compute_spread, law.sync_spread, *[law.link_spread] * LINK_KINDS]
        )
        self._prior **= 2
        self._factors = np.zeros(2 + LINK_KINDS)
        if not len(measured):
            return
        log_s = np.log(measured_s)
        noise = self._residuals(measured, measured) + law.noise**2 * np.eye(len(measured))
        for _ in range(_ITERATIONS):
            center, slopes = self._law_of_job(measured)
            covariance = slopes @ self._prior @ slopes.T + noise
            off = log_s - center + slopes @ self._factors
            found = self._prior @ slopes.T @ np.linalg.solve(covariance, off)
            self._factors = np.clip(found, -_MOST_LOG, _MOST_LOG)
        center, slopes = self._law_of_job(measured)
        self._slopes = slopes
        self._weights = np.linalg.solve(noise, log_s - center)
        self._inverse = np.linalg.inv(slopes @ self._prior @ slopes.T + noise)

    def predict(self, steps: ScaledSteps) -> tuple[Array, Array]:
        """Return the logarithms of the steps at some sizes, and their covariance.

        Parameters
        ----------
        steps : ScaledSteps
            Predicted steps at these sizes.

        Returns
        -------
        log_s : ndarray of shape (sizes,)
        covariance : ndarray of shape (sizes, sizes)
            Without the noise of a measurement.
        """
        log_s, slopes = self._law_of_job(steps)
        covariance = slopes @ self._prior @ slopes.T + self._residuals(steps, steps)
        if len(self._measured):
            shared = self._residuals(steps, self._measured)
            log_s = log_s + shared @ self._weights
            shared = shared + slopes @ self._prior @ self._slopes.T
            covariance = covariance - shared @ self._inverse @ shared.T
        return log_s, covariance

    def log_likelihood(self, measured_s: Array) -> float:
        """Return the log density of the measurements that the fit was made to, up to a constant."""
        center, _ = self._law_of_job(self._measured)
        off = np.log(measured_s) - center + self._slopes @ self._factors
        _, log_det = np.linalg.slogdet(self._inverse)
        return float(0.5 * log_det - 0.5 * off @ self._inverse @ off)

    def _law_of_job(self, steps: ScaledSteps) -> tuple[Array, Array]:
        """Return log seconds by the law with the job's factors, and their derivatives by these."""
        overlap, links = self._law.overlap, steps.links
        compute = (1 - steps.sync_share) * np.exp(overlap * self._factors[0])
        sync_factors = self._factors[1] + self._factors[2:][links]
        sync = steps.sync_share * np.exp(overlap * sync_factors)
        share = sync / (compute + sync)
        slopes = np.zeros((len(steps), len(self._factors)))
        slopes[:, 0], slopes[:, 1] = 1 - share, share
        slopes[np.arange(len(steps)), 2 + links] = share
        return np.log(steps.step_s) + np.log(compute + sync) / overlap, slopes

    def _residuals(self, some: ScaledSteps, others: ScaledSteps) -> Array:
        """Return the covariance of the residuals, shape (some, others).

        Sizes on one node, whose links are of another kind, share nothing with those on several.
        """
        law, distance = self._law, np.zeros((len(some), len(others)))
        for name, length in (
            ("gpus", law.gpus_length), ("nodes", law.nodes_length), ("batch", law.batch_length),
        ):  # fmt: skip
            before, after = (np.log(getattr(one, name)) for one in (some, others))
            distance += ((before[:, np.newaxis] - after) / length) ** 2
        one_node = (some.nodes == 1)[:, np.newaxis] == (others.nodes == 1)
        return np.where(one_node, law.residual_spread**2 * np.exp(-distance / 2), 0.0)
