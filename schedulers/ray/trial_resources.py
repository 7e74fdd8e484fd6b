"""Resources of a trial, as Ray Tune, Ray Train and Ray's tasks and actors request them.

This module does not import Ray.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presage.errors import (
    ConfigError,
    ExpiredError,
    OverloadedError,
    ReleaseError,
    ServiceError,
    UnknownDeviceError,
    one_line,
)
from presage.features.device.device import Device, find_device
from presage.features.device.device_class import PROCESSOR, device_class
from presage.features.device.local_device import detect
from presage.features.job.data_loading import DataLoading
from presage.features.job.job_description import JobFeatures
from presage.schedulers.forecasters.predicted import check_risk
from presage.schedulers.policies.packing.compatibility import Limits
from presage.schedulers.ray.trial_forecaster import TrialForecaster, calibrated_risk
from presage.schedulers.ray.trial_sharing import (
    DEFAULT_LIMITS,
    TrialSharing,
    check_limits,
    share_device,
)
from presage.serving.client.credentials import Credentials
from presage.serving.predictor.prediction_backend import PredictionBackend
from presage.system.text.address import check_address

# What a worker of Ray that runs a Tune trial takes beyond a process that only trains: 151 MiB of
# resident memory with Ray 2.60 and Python 3.11, for two models that are in no reported row.
RAY_WORKER_BYTES = 160 * 2**20
_GRAIN = 10_000  # Ray counts resources in steps of 1/10,000


@dataclass(frozen=True, slots=True, kw_only=True)
class RayDevice:
    """Device of Ray's nodes that trials share, and how Ray counts it.

    Attributes
    ----------
    device : Device
    memory_bytes : int
        Memory of one device for trials.
    resource : str
        Custom resource of which each device is one; "" for GPU or CPU.
    cpus : float
        Processors of the host that each trial on a GPU requests.
    """

    device: Device
    memory_bytes: int
    resource: str = ""
    cpus: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.memory_bytes < math.inf:
            raise ConfigError(
                f"device_memory_bytes={self.memory_bytes}, must be a finite number above 0"
            )
        if not 0 <= self.cpus < math.inf:
            raise ConfigError(f"cpus={self.cpus}, must be a finite number of at least 0")
        if self.resource in ("CPU", "GPU", "memory", "object_store_memory"):
            raise ConfigError(
                f"device_resource={self.resource!r} is a resource of Ray's own; name a custom one, "
                "or leave it out"
            )

    @property
    def is_processor(self) -> bool:
        """Whether trials run on the processors of a node."""
        return device_class(self.device) == PROCESSOR

    def request(self, sharing: TrialSharing) -> dict[str, float]:
        """Return the resources of one of the trials that share a device."""
        request: dict[str, float] = {}
        if self.resource:
            request[self.resource] = _part(1.0, sharing.trials)
        elif self.is_processor:
            request["CPU"] = _part(float(self.device.cores), sharing.trials)
        else:
            request["GPU"] = _part(1.0, sharing.trials)
        if not self.is_processor and self.cpus:
            request["CPU"] = self.cpus
        if self.is_processor and sharing.memory_bytes is not None:  # of a GPU it is no host memory
            request["memory"] = float(sharing.memory_bytes)
        return request


class TrialResources(dict[str, float]):
    """Resources of a trial by Ray's names, with the decision behind them.

    ``ray.tune.with_resources`` and ``ray.train.ScalingConfig(resources_per_worker=...)`` take it as
    it is.

    Attributes
    ----------
    device : str
        Kind of the device.
    sharing : TrialSharing
        Number of trials on a device, the memory and the slowdown of each, and the reason why there
        are no more.
    """

    def __init__(self, request: Mapping[str, float], device: str, sharing: TrialSharing) -> None:
        super().__init__(request)
        self.device, self.sharing = device, sharing

    @property
    def trials_per_device(self) -> int:
        """Number of trials that share a device; 1 for an exclusive device."""
        return self.sharing.trials

    @property
    def reason(self) -> str:
        """Why no more trials share the device."""
        return self.sharing.reason

    @property
    def speedup(self) -> float:
        """Predicted throughput of the trials at once over that of the trials in a row."""
        return self.sharing.trials / self.sharing.slowdown

    def remote_options(self) -> dict[str, Any]:
        """Return the arguments of ``ray.remote`` and ``.options``."""
        custom = {name: n for name, n in self.items() if name not in ("CPU", "GPU", "memory")}
        found: dict[str, Any] = {"num_cpus": self.get("CPU", 0), "num_gpus": self.get("GPU", 0)}
        if "memory" in self:
            found["memory"] = self["memory"]
        return {**found, "resources": custom} if custom else found

    def __reduce__(self) -> tuple[Any, ...]:
        return TrialResources, (dict(self), self.device, self.sharing)


def trial_resources(
    trial: JobFeatures,
    risk: float,
    *,
    predictor: PredictionBackend | str | Path,
    device: str = "",
    device_memory_bytes: int | None = None,
    device_resource: str = "",
    cpus: float = 1.0,
    loading: DataLoading | None = None,
    process_bytes: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    credentials: Credentials | None = None,
) -> TrialResources:
    """Return the resources of a trial; see :func:`presage.ray.resources`."""
    check_risk(risk)
    check_limits(limits)
    if process_bytes is not None and not 0 <= process_bytes < math.inf:
        raise ConfigError(f"process_bytes={process_bytes}, must be a number of at least 0")
    with _opened(predictor, credentials) as backend:
        kind = device or detect().kind
        try:
            found = _device(backend, kind)
            usable_risk = calibrated_risk(risk, backend.release().levels)
        except (ServiceError, OverloadedError, ExpiredError, ReleaseError) as error:
            known = find_device(kind)
            on = _ray_device(known, device_memory_bytes, device_resource, cpus)
            sharing = TrialSharing(1, None, 1.0, f"no forecast: {one_line(error)}")
            return TrialResources(on.request(sharing), kind, sharing)
        on = _ray_device(found, device_memory_bytes, device_resource, cpus)
        forecaster = TrialForecaster(
            backend, found, risk=usable_risk, loading=loading,
            process_bytes=_process_bytes(process_bytes, on),
        )  # fmt: skip
        sharing = share_device(trial, found.kind, on.memory_bytes, forecaster, limits)
    return TrialResources(on.request(sharing), found.kind, sharing)


def _process_bytes(given: int | None, on: RayDevice) -> int:
    """Return the memory of a worker: only a processor's trials have it on their device."""
    if given is not None:
        return given
    return RAY_WORKER_BYTES if on.is_processor else 0


def _ray_device(device: Device, memory_bytes: int | None, resource: str, cpus: float) -> RayDevice:
    own = device.memory_bytes if memory_bytes is None else memory_bytes
    return RayDevice(device=device, memory_bytes=own, resource=resource, cpus=cpus)


def _part(whole: float, trials: int) -> float:
    """Return a part of a device, rounded down so that all parts fit."""
    return math.floor(whole * _GRAIN / trials) / _GRAIN


def _device(backend: PredictionBackend, kind: str) -> Device:
    """Return a device as the predictor knows it, else from the catalogue."""
    try:
        return backend.device(kind)
    except UnknownDeviceError:
        return find_device(kind)


@contextmanager
def _opened(
    predictor: PredictionBackend | str | Path, credentials: Credentials | None
) -> Iterator[PredictionBackend]:
    if not isinstance(predictor, str | Path):
        yield predictor
    elif Path(predictor).is_dir():
        from presage.serving.predictor.predictor import load_predictor

        yield load_predictor(Path(predictor))
    else:
        from presage.serving.client.client import PresageClient

        named = f"predictor={str(predictor)!r}"
        check_address(
            str(predictor), named,
            f"{named} is neither HOST:PORT of a prediction server nor the folder of a release",
        )  # fmt: skip
        with PresageClient(str(predictor), credentials=credentials) as client:
            yield client
