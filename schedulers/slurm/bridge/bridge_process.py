"""Process of the bridge: its server, and the supervision of the watcher."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from presage.errors import PresageError
from presage.schedulers.slurm.bridge.bridge import Bridge
from presage.schedulers.slurm.bridge.bridge_server import SOCKET, BridgeServer
from presage.schedulers.slurm.bridge.decide import DecisionOptions
from presage.schedulers.slurm.bridge.job_forecasts import Backend
from presage.schedulers.slurm.feature_store import FeatureStore
from presage.schedulers.slurm.watch.slurm_job import Slurm
from presage.schedulers.slurm.watch.watcher import STALE_S, heartbeat_age_s, restore
from presage.serving.server.log import log

RESTORE_AFTER_S = 2 * STALE_S  # without the watcher; the least lead is as long
_CHECK_S = 5.0
_REFRESH_S = 60.0


def run_bridge(
    backend: Backend,
    state: Path,
    kinds: Mapping[str, str],
    options: DecisionOptions,
    *,
    timeout_s: float,
    stopping: threading.Event,
    started: Callable[[Path], None],
) -> None:
    """Serve until the event is set.

    Raises
    ------
    ServiceError
        Another bridge listens, or the socket cannot be used.
    """
    bridge = Bridge(
        backend,
        FeatureStore(state),
        kinds,
        options,
        is_watched=lambda: heartbeat_age_s(state) < STALE_S,
        timeout_s=timeout_s,
    )
    with BridgeServer(state / SOCKET, bridge.respond):
        gc.collect()
        gc.freeze()
        started(state / SOCKET)
        refreshing = threading.Thread(target=_refresh, args=(bridge, stopping), daemon=True)
        refreshing.start()
        supervise(state, stopping)
    log(logging.INFO, "bridge stopped", answers=dict(bridge.counts))


def _refresh(bridge: Bridge, stopping: threading.Event) -> None:
    """Refresh the devices for as long as the bridge runs; the predictor may start after it."""
    wait_s = 0.0
    while not stopping.wait(wait_s):
        try:
            bridge.refresh()
        except PresageError as error:
            log(logging.WARNING, "no device data", error=str(error)[:300])
            wait_s = _CHECK_S
        else:
            wait_s = _REFRESH_S


def supervise(state: Path, stopping: threading.Event) -> None:
    """Give jobs their own limits back once the watcher has been away for too long."""
    is_restored = False
    while not stopping.wait(_CHECK_S):
        if heartbeat_age_s(state) < RESTORE_AFTER_S:
            is_restored = False
        elif not is_restored:
            try:
                count = restore(Slurm())
            except PresageError as error:
                log(logging.WARNING, "limits were not restored", error=str(error)[:300])
                continue
            is_restored = True
            log(logging.WARNING, "the watcher is away: limits restored", jobs=count)
