"""Law of the step time on several GPUs, from the step on one GPU and the gradients.

After Pollux (Qiao et al., OSDI 2021, section 3.2): a step computes gradients for c seconds and
synchronizes them for s seconds, and takes (c^gamma + s^gamma)^(1/gamma): their sum at gamma = 1,
and the longer one as gamma grows. Pollux fits s for each job. Here s follows from the bytes that a
ring all-reduce moves, so it is also defined for a job that never ran on several GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from presage.errors import ConfigError
from presage.system.arrays import Array, Ints

LINK_KINDS = 3  # within a node, between two nodes, between more
# Below the first one, covariances of equal sizes are singular.
_LEAST_SPREAD, _MOST_SPREAD = 1e-3, 100.0
_MOST_OVERLAP = 20.0  # the longer part hides the other one entirely


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """Constants of a kind of cluster, and how far jobs deviate from them.

    The defaults were fitted by ``python -m presage.pipelines.pretraining.print_scaling_law`` to
    Pollux's 7,103 steps of six models on T4s, four on a node. Deviations are standard deviations of
    logarithms.

    Attributes
    ----------
    fixed_s, bytes_per_s, widest_power : tuple of float, by kind of link
        Seconds of any synchronization; rate of a link; and the exponent of the largest number of
        GPUs that share a node's link.
    overlap : float
        The exponent gamma: 1 if synchronization follows computation, large if they overlap.
    compute_spread : float
        Deviation of a job's computation from the predicted step on one GPU.
    sync_spread, link_spread : float
        Deviation of a job's synchronization: over all kinds of links, and further on each kind.
    residual_spread, noise : float
        Deviation of a size from the law of its job, which similar sizes share; and the deviation of
        one measurement.
    gpus_length, nodes_length, batch_length : float
        Distances, in logarithms, at which sizes share little of that deviation.
    models : int
        Number of models to which the law was fitted.
    """

    fixed_s: tuple[float, ...] = (2.99e-3, 1e-6, 1e-6)
    bytes_per_s: tuple[float, ...] = (5.24e9, 4.61e8, 6.19e8)
    widest_power: tuple[float, ...] = (0.658, 0.167, 0.103)
    overlap: float = 1.488
    compute_spread: float = 0.3
    sync_spread: float = 0.206
    link_spread: float = 0.081
    residual_spread: float = 0.168
    noise: float = 0.060
    gpus_length: float = 0.55
    nodes_length: float = 1.20
    batch_length: float = 1.63
    models: int = 6

    def __post_init__(self) -> None:
        self._check_links()
        positive = (
            "compute_spread", "sync_spread", "link_spread", "residual_spread", "noise",
            "gpus_length", "nodes_length", "batch_length",
        )  # fmt: skip
        for name in positive:
            if not _LEAST_SPREAD <= getattr(self, name) <= _MOST_SPREAD:
                raise ConfigError(
                    f"scaling law: {name}={getattr(self, name)}, must be within "
                    f"{_LEAST_SPREAD:g} and {_MOST_SPREAD:g}"
                )
        if not 1 <= self.overlap <= _MOST_OVERLAP:
            raise ConfigError(
                f"scaling law: overlap={self.overlap}, must be within 1 and {_MOST_OVERLAP:g}"
            )

    def _check_links(self) -> None:
        for name in ("fixed_s", "bytes_per_s", "widest_power"):
            values = getattr(self, name)
            least = -math.inf if name == "widest_power" else 0.0
            if len(values) != LINK_KINDS or not all(least < value < math.inf for value in values):
                raise ConfigError(
                    f"scaling law: {name}={values}, must have {LINK_KINDS} finite numbers"
                    + ("" if name == "widest_power" else " > 0")
                )

    def steps(
        self,
        compute_s: Array,
        gradient_bytes: float | Array,
        gpus: Array,
        nodes: Array,
        batch: Array,
    ) -> ScaledSteps:
        """Return the steps of a job at several sizes.

        Parameters
        ----------
        compute_s : ndarray of shape (sizes,)
            Seconds of a step on one GPU with the batch of each size.
        gradient_bytes : float or ndarray of shape (sizes,)
            Bytes of the job's gradients.
        gpus, nodes, batch : ndarray of shape (sizes,)
            Numbers of GPUs and of nodes, and samples of each GPU.
        """
        link = _link_kinds(nodes)
        ring_bytes = 2 * (gpus - 1) / gpus * gradient_bytes
        shared = np.ceil(gpus / nodes) ** np.array(self.widest_power)[link]
        rates = np.array(self.bytes_per_s)[link]
        sync_s = np.where(gpus > 1, np.array(self.fixed_s)[link] + ring_bytes * shared / rates, 0.0)
        # The longer part is taken out of the sum: its power by itself may overflow.
        longer = np.maximum(compute_s, sync_s)
        parts = (compute_s / longer) ** self.overlap, (sync_s / longer) ** self.overlap
        step_s = longer * (parts[0] + parts[1]) ** (1 / self.overlap)
        return ScaledSteps(gpus, nodes, batch, step_s, parts[1] / (parts[0] + parts[1]))

    def as_json(self) -> dict[str, Any]:
        """Return the law as a JSON object."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True, slots=True)
class ScaledSteps:
    """Predicted steps of a job at several sizes, as arrays of shape (sizes,).

    Attributes
    ----------
    gpus, nodes : ndarray
    batch : ndarray
        Samples of each GPU, in any unit that all sizes share.
    step_s : ndarray
        Predicted seconds of a step, or any time in proportion to it.
    sync_share : ndarray
        Share of the step, within [0, 1], that synchronization accounts for: s^gamma over
        c^gamma + s^gamma.
    """

    gpus: Array
    nodes: Array
    batch: Array
    step_s: Array
    sync_share: Array

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def links(self) -> Ints:
        """Kind of the slowest link of each size, as a position."""
        return _link_kinds(self.nodes)

    def rows(self, chosen: slice) -> ScaledSteps:
        """Return some of the sizes."""
        return ScaledSteps(*(getattr(self, one.name)[chosen] for one in fields(self)))


def _link_kinds(nodes: Array) -> Ints:
    kinds: Ints = np.minimum(nodes, LINK_KINDS).astype(np.intp) - 1
    return kinds


def scaled_steps(rows: Sequence[tuple[float, float, float, float, float]]) -> ScaledSteps:
    """Return steps of rows (GPUs, nodes, batch, step_s, sync_share)."""
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 5)
    return ScaledSteps(*table.T)


def parse_law(content: Mapping[str, Any]) -> ScalingLaw:
    """Return the law of a JSON object.

    Raises
    ------
    ConfigError
        A constant is missing, unknown, or invalid.
    """
    names = {one.name for one in fields(ScalingLaw)}
    if content.keys() != names:
        wrong = sorted(content.keys() ^ names)
        raise ConfigError(f"scaling law: {wrong[0]!r} is missing or unknown")
    values: dict[str, Any] = {}
    for name, value in content.items():
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in parts):
            raise ConfigError(f"scaling law: {name} must consist of numbers")
        values[name] = tuple(map(float, value)) if isinstance(value, list) else value
    return ScalingLaw(**values)


DEFAULT_LAW = ScalingLaw()
