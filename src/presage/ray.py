"""Resources of trials of Ray Tune and Ray Train, by forecasts.

.. code-block:: python

    from presage.ray import resources
    from ray import tune

    share = resources("model.onnx", risk=0.05, device="a100-80gb", predictor="head:50051")
    print(share, share.trials_per_device, share.reason)
    tuner = tune.Tuner(tune.with_resources(train, share), param_space=space)

Nothing here imports Ray. ``presage cluster on-ray`` runs a live cluster on Ray's nodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from presage.schedulers.policies.packing.compatibility import Limits
from presage.schedulers.policies.packing.packing_policy import MOST_SLOWDOWN
from presage.schedulers.ray.trial_resources import TrialResources, trial_resources
from presage.schedulers.ray.trial_sharing import MOST_TRIALS, TrialSharing

if TYPE_CHECKING:
    from presage.features.job.data_loading import DataLoading
    from presage.features.job.job_description import JobFeatures
    from presage.serving.client.credentials import Credentials
    from presage.serving.predictor.prediction_backend import PredictionBackend

__all__ = ["TrialResources", "TrialSharing", "resources"]


def resources(
    trial: JobFeatures | str | Path | tuple[Any, Any],
    risk: float = 0.1,
    *,
    predictor: PredictionBackend | str | Path,
    device: str = "",
    device_memory_bytes: int | None = None,
    device_resource: str = "",
    cpus: float = 1.0,
    loading: DataLoading | None = None,
    process_bytes: int | None = None,
    most_trials: int = MOST_TRIALS,
    most_slowdown: float = MOST_SLOWDOWN,
    overcommit: float = 1.0,
    credentials: Credentials | None = None,
    **model: Any,
) -> TrialResources:
    """Return the resources that a trial requests of Ray: a part of a device, and its memory.

    The part is one over the number of copies of the trial that the policy ``packing`` would start
    on one device: the sum of their memory bounds and of their predicted utilization fits in the
    device, and none is predicted to be slowed down by more than ``most_slowdown``, so that trials
    at once are faster than in a row. Without a forecast, or out of domain, it is a whole device.

    Parameters
    ----------
    trial : JobFeatures, str, Path or (module, inputs)
        The model that a trial trains, as :func:`presage.serving.client.job_features.\
make_job_features` takes it; a text may also be ``module:function``, or a job of the profiler's zoo.
    risk : float in (0, 0.5]
        Accepted probability that co-located trials need more memory than the device has. The bound
        is that of the largest risk up to this one that the release is calibrated for.
    predictor : PredictionBackend, str or Path
        HOST:PORT of a prediction server, the folder of a release, or a client.
    device : str
        Kind of the device; by default this machine's.
    device_memory_bytes : int, optional
        Memory of a device for trials; by default all of it. For processors it should be the
        ``memory`` that the nodes offer to Ray.
    device_resource : str
        Custom resource of which each device is one; by default ``GPU``, or ``CPU`` for processors.
    cpus : float
        Processors of the host for each trial on a GPU.
    loading : DataLoading, optional
        How a trial loads its samples, if its features describe steps without that. Trials that
        wait for samples leave room for others.
    process_bytes : int, optional
        Memory of a trial's process beyond that of the forecast; by default that of a worker of Ray
        on processors, and 0 on GPUs.
    most_trials, most_slowdown, overcommit
        Limits of sharing, as of the policy ``packing``. ``most_slowdown`` must be below 2.
    credentials : Credentials, optional
        Token or certificates for a server.
    **model
        Options of the model, such as ``batch_size``, ``iterations`` and ``optimizer``.

    Returns
    -------
    TrialResources
        A dict such as ``{"GPU": 0.5, "CPU": 1.0}`` or ``{"CPU": 1.0, "memory": 1.2e9}``.

    Raises
    ------
    ConfigError
        The risk or a limit is out of range, or ``predictor`` is neither an address nor a folder.
    GraphError, InvalidJobError
        The model cannot be read.
    UnknownDeviceError
        Neither the predictor nor the catalogue knows the kind.
    UnauthenticatedError, ForbiddenError
        The server rejects the credentials.
    """
    return trial_resources(
        _features(trial, model), risk,
        predictor=predictor, device=device, device_memory_bytes=device_memory_bytes,
        device_resource=device_resource, cpus=cpus, loading=loading, process_bytes=process_bytes,
        limits=Limits(most_slowdown, most_trials, overcommit), credentials=credentials,
    )  # fmt: skip


def _features(trial: Any, model: dict[str, Any]) -> JobFeatures:
    from presage.serving.client.job_features import make_job_features

    if isinstance(trial, str | Path):
        from presage.cli.options.job_source import read_job

        return read_job(str(trial), **model)
    return make_job_features(trial, **model)
