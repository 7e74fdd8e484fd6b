"""Explanations of a learned policy's decisions: which failure rates, and what was avoided."""

from __future__ import annotations

import math

import numpy as np

from presage.schedulers.core.cluster import Cluster
from presage.schedulers.policies.failures.device_order import Devices
from presage.schedulers.policies.failures.learnt.placement_features import Observed, Observer
from presage.system.arrays import Array

DAY_S, HOUR_S = 86_400.0, 3600.0
MOST_NAMED = 4  # devices


def explain_start(
    release_id: str,
    observer: Observer,
    observed: Observed,
    row: int,
    devices: Devices,
    cluster: Cluster,
) -> str:
    """Return why a job starts on devices: their failure rates, and the idle ones avoided.

    Parameters
    ----------
    row : int
        Row of the job in the observation.
    """
    rates, j = observer.view.rates_per_s, int(observed.fit[row])
    text = (
        f"placement release {release_id} started it before {_others(observer)}, on devices that "
        f"fail at {_chances(rates[devices], observer, j)}; it is expected to end in "
        f"{_hours(float(observed.here_s[row]))}"
    )
    idle = observer.pool(j).idle
    worse = idle[rates[idle] > rates[devices].max()][::-1]
    if not len(worse):
        return text
    named = ", ".join(
        f"{device_name(int(one), cluster)} ({_per_day(float(rates[one]))})"
        for one in worse[:MOST_NAMED]
    )
    more = f" and {len(worse) - MOST_NAMED} more" if len(worse) > MOST_NAMED else ""
    return f"{text}; avoided {named}{more}"


def explain_wait(release_id: str, rate_per_s: float, here_s: float, later_s: float) -> str:
    """Return why a job that fits waits: its expected completion here, and on other devices.

    Parameters
    ----------
    rate_per_s, here_s : float
        Failure rate of the gang on the safest idle devices, and its expected completion there.
    later_s : float
        Earliest expected completion on devices that running jobs will release.
    """
    text = (
        f"placement release {release_id} waits: on the idle devices it fails at "
        f"{_per_day(rate_per_s)} and is expected to end in {_hours(here_s)}"
    )
    if later_s < math.inf:
        text += f"; on devices that running jobs release, in {_hours(later_s)}"
    return text


def device_name(device: int, cluster: Cluster) -> str:
    """Return the node of a device, with the number of the device if the node has several."""
    node = int(cluster.columns.node[device])
    first = int(np.flatnonzero(cluster.columns.node == node)[0])
    found = cluster.nodes[node]
    return found.name if found.devices == 1 else f"{found.name}:{device - first}"


def _others(observer: Observer) -> str:
    waiting = int(np.count_nonzero(~observer.view.is_running)) - 1
    return f"{waiting} other pending job{'' if waiting == 1 else 's'}"


def _chances(rates_per_s: Array, observer: Observer, j: int) -> str:
    """Return the total rate of a gang, and the probability that it fails while the job runs."""
    total = float(rates_per_s.sum())
    chance = -math.expm1(-total * observer.view.remaining_s(j))
    return f"{_per_day(total)}, with {100 * chance:.3g} % until its end"


def _per_day(rate_per_s: float) -> str:
    return f"{rate_per_s * DAY_S:.3g} a day"


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR_S:.3g} h"
