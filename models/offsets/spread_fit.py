"""Variances of random effects, estimated from the errors of forecasts of left-out groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from presage.models.offsets.evidence import Effect, Terms
from presage.models.offsets.random_effects import Spread
from presage.system.arrays import Array

# Of repeated runs: public tables have hardly any, so it is not estimated there. Equal runs of timm
# and of the committed campaigns differ by 0.4 to 3 %.
NOISE = 0.03
_LEAST, _MOST = 1e-3, 3.0  # standard deviations
_FURTHEST = 3.0  # an error counts as at most this many robust standard deviations


def estimate_spread(
    errors: Array, terms: Sequence[Terms], levels: Sequence[str], *, noise: float = NOISE
) -> Spread:
    """Return the variances with the largest marginal likelihood.

    Errors are those of forecasts by models that were not trained on the group, such as the device,
    of a row. Memory and time grow with the square and the cube of the rows.

    Parameters
    ----------
    errors : ndarray of shape (rows,)
    terms : sequence of Terms, one for each row
    levels : sequence of str
        Levels of effects to estimate; effects of other levels are left out.
    """
    from scipy.optimize import minimize

    middle = float(np.median(errors))
    robust = 1.4826 * float(np.median(np.abs(errors - middle))) or _LEAST
    y = np.clip(errors, middle - _FURTHEST * robust, middle + _FURTHEST * robust)
    kernels = [_kernel(terms, level) for level in levels]
    eye = np.eye(len(y))

    def loss(log_variances: Array) -> tuple[float, Array]:
        variances = np.exp(log_variances)
        covariance = (variances[-1] + noise**2) * eye
        for variance, kernel in zip(variances, kernels, strict=False):
            covariance += variance * kernel
        inverse = np.linalg.inv(covariance)
        solved = inverse @ y
        slopes = [float((inverse * kernel).sum() - solved @ kernel @ solved) for kernel in kernels]
        slopes.append(float(np.trace(inverse) - solved @ solved))
        value = float(np.linalg.slogdet(covariance)[1] + y @ solved)
        return value, np.array(slopes) * variances

    start = np.full(len(levels) + 1, np.log(max(robust, 0.02) ** 2 / (len(levels) + 1)))
    bounds = [(2 * np.log(_LEAST), 2 * np.log(_MOST))] * len(start)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    deviations = np.exp(found.x / 2).tolist()
    return Spread(dict(zip(levels, deviations, strict=False)), deviations[-1], noise)


def _kernel(terms: Sequence[Terms], level: str) -> Array:
    """Return the covariance of the rows by effects of one level with variance 1."""
    position: dict[Effect, int] = {}
    cells = [
        (row, position.setdefault(effect, len(position)), weight)
        for row, of_row in enumerate(terms)
        for effect, weight in of_row
        if effect[0] == level
    ]
    design = np.zeros((len(terms), len(position)))
    for row, column, weight in cells:
        design[row, column] += weight
    return np.asarray(design @ design.T)
