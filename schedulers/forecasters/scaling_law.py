"""Law of the step time on several devices, from the step on one device and the gradients.

The law of ``models/networks/scale_out_law.py`` without its training, for schedulers, which import
no models: after Pollux (Qiao et al., OSDI 2021, section 3.2), a step computes gradients for g
seconds and synchronizes them for s seconds, and takes (g^gamma + s^gamma)^(1/gamma). The batch of
all devices together is constant, so g falls with the number of devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from presage.errors import ConfigError
from presage.schedulers.core.speedup import Speedup

LINK_KINDS = 3  # within a node, between two nodes, between more


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """Constants of a kind of cluster.

    The defaults were fitted by ``python -m benchmarks.elastic_simulation`` on Pollux's 7,103 steps
    of six models on T4s, four on a node.

    Attributes
    ----------
    fixed_share : float
        Part of a step on one device that does not depend on the batch size.
    fixed_s, bytes_per_s, widest_power : tuple of float, by kind of link
        Seconds of any synchronization; rate of a link; and the exponent of the largest number of
        devices that share a node's link.
    overlap : float
        The exponent gamma: 1 if synchronization follows computation, large if they overlap.
    log_error : float
        Half width of the 80 % interval of the logarithm of a speed-up.
    """

    fixed_share: float = 0.172
    fixed_s: tuple[float, ...] = (3.2e-3, 1e-6, 1e-6)
    bytes_per_s: tuple[float, ...] = (1.485e9, 4.19e8, 5.63e8)
    widest_power: tuple[float, ...] = (-0.008, 0.133, 0.090)
    overlap: float = 1.71
    log_error: float = 0.22

    def __post_init__(self) -> None:
        by_link = (*self.fixed_s, *self.bytes_per_s, self.overlap)
        if not all(0 < value < math.inf for value in by_link) or self.overlap < 1:
            raise ConfigError(
                f"scaling law {self}: seconds and rates must be finite numbers > 0, overlap >= 1"
            )
        if not 0 <= self.fixed_share <= 1:
            raise ConfigError(f"fixed_share={self.fixed_share}, must be within 0 and 1; a fraction")

    def step_s(
        self, one_device_s: float, gradient_bytes: float, batch_ratio: float, gpus: int, nodes: int
    ) -> float:
        """Return the seconds of a step.

        Parameters
        ----------
        one_device_s : float
            Seconds of a step on one device with the batch size of the features.
        batch_ratio : float
            Batch of each device over that batch size.
        """
        compute_s = one_device_s * (self.fixed_share + (1.0 - self.fixed_share) * batch_ratio)
        if gpus == 1:
            return compute_s
        link = min(nodes, LINK_KINDS) - 1
        ring_bytes = 2 * (gpus - 1) / gpus * gradient_bytes
        shared = math.ceil(gpus / nodes) ** self.widest_power[link]
        sync_s = self.fixed_s[link] + ring_bytes * shared / self.bytes_per_s[link]
        total: float = (compute_s**self.overlap + sync_s**self.overlap) ** (1 / self.overlap)
        return total

    def speedup(
        self,
        one_device_s: float,
        gradient_bytes: float,
        *,
        requested: tuple[int, int],
        size: tuple[int, int],
    ) -> Speedup:
        """Return the speed of a size over the requested one; both are (devices, nodes).

        The batch of each device is that of the features on the requested devices.
        """
        ratio = requested[0] / size[0]
        before_s = self.step_s(one_device_s, gradient_bytes, 1.0, *requested)
        after_s = self.step_s(one_device_s, gradient_bytes, ratio, *size)
        times = before_s / after_s
        error = 0.0 if size == requested else self.log_error
        return Speedup(times, times * math.exp(-error), times * math.exp(error))


DEFAULT_LAW = ScalingLaw()
