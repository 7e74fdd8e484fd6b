"""What one class of devices taught a predictor, to go on from: networks and their margins."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from presage.errors import ReleaseError
from presage.features.columns.schema import columns, schema_hash
from presage.models.calibration.margins import Margins
from presage.models.training.fit import FitConfig, NetworkInputs, ScalarStack
from presage.models.training.fit_interference import InterferenceStack

Stack = TypeVar("Stack", ScalarStack, InterferenceStack)


@dataclass(frozen=True)
class TrainedNetworks(Generic[Stack]):
    """Networks, what moves the ends of their intervals, and digests of the jobs that taught them.

    ``jobs`` is empty of networks that were written before they said so.
    """

    stack: Stack
    margins: Margins
    jobs: frozenset[str] = frozenset()


def write_networks(learnt: TrainedNetworks[Any], path: Path) -> None:
    """Write it as one ``.npz``: equal networks, equal bytes."""
    of_whole = {
        "schema_hash": schema_hash("full"),
        "margins": sorted(learnt.margins.default.items()),
        "stranger_margins": sorted(learnt.margins.out_of_domain.items()),
        "device_margins": [
            [identity, sorted(own.items())] for identity, own in learnt.margins.devices
        ],
        "jobs": sorted(learnt.jobs),
    }
    arrays = {name: value.numpy() for name, value in learnt.stack.state_dict().items()}
    with path.open("wb") as file:
        np.savez_compressed(file, about=np.array(json.dumps(of_whole)), **arrays)


def read_scalar_networks(path: Path) -> TrainedNetworks[ScalarStack]:
    """A solo predictor's.

    Raises
    ------
    ReleaseError
        The file is none, is damaged, or is of another feature schema.
    """
    return _read(path, _make_scalar_stack)


def read_interference_networks(path: Path) -> TrainedNetworks[InterferenceStack]:
    """The interference predictor's.

    Raises
    ------
    ReleaseError
        The file is none, is damaged, or is of another feature schema.
    """
    return _read(path, _make_interference_stack)


def read_training_jobs(path: Path) -> frozenset[str]:
    """Digests of the jobs that taught it; none where it does not say.

    Raises
    ------
    ReleaseError
        The file is none, or is damaged.
    """
    try:
        with np.load(path) as arrays:
            return frozenset(json.loads(str(arrays["about"])).get("jobs", ()))
    except _READ_ERRORS as error:
        raise _unreadable(path, error) from error


def _make_scalar_stack(state: dict[str, Tensor]) -> ScalarStack:
    """One of the sizes that the weights have."""
    members, _, hidden = state["net.second.weight"].shape
    read, identity, by_layout = (
        state[name].tolist() for name in ("columns", "identity", "by_layout")
    )
    # Rows that mean nothing but that there are so many devices.
    x = torch.zeros(len(state["device_effect.known"]), len(columns("full")))
    x[:, identity] = state["device_effect.known"]
    nothing = torch.ones(members, len(x))
    parts = state["parts.positions"].tolist() if "parts.positions" in state else ()
    inputs = NetworkInputs(tuple(read), tuple(identity), tuple(by_layout), tuple(parts))
    return ScalarStack(x, nothing, nothing, inputs, _size_only_config(hidden))


def _make_interference_stack(state: dict[str, Tensor]) -> InterferenceStack:
    members, n_in, hidden = state["net.member.weight"].shape
    nothing = torch.ones(members, 1, 1, n_in)
    return InterferenceStack(nothing, nothing[..., 0], _size_only_config(hidden))


# What a damaged archive, or one of something else, was seen to raise.
_READ_ERRORS = (
    OSError, EOFError, BadZipFile, zlib.error,
    ValueError, LookupError, TypeError, RuntimeError,
)  # fmt: skip


def _read(path: Path, empty: Callable[[dict[str, Tensor]], Stack]) -> TrainedNetworks[Stack]:
    """What was learnt, in a stack of its sizes, which ``empty`` makes."""
    try:
        with np.load(path) as arrays:
            about = json.loads(str(arrays["about"]))
            state = {name: torch.from_numpy(arrays[name]) for name in arrays if name != "about"}
        schema = str(about["schema_hash"])
        if schema == schema_hash("full"):
            margins = Margins(
                dict(about["margins"]),
                dict(about["stranger_margins"]),
                tuple((tuple(who), dict(own)) for who, own in about["device_margins"]),
            )
            stack = empty(state)
            stack.load_state_dict(state)
            return TrainedNetworks(stack.eval(), margins, frozenset(about.get("jobs", ())))
    except _READ_ERRORS as error:
        raise _unreadable(path, error) from error
    raise ReleaseError(
        f"{path}: networks of feature schema {schema}, this version has "
        f"{schema_hash('full')}; make them again with `make pretrained`"
    )


def _unreadable(path: Path, error: Exception) -> ReleaseError:
    said = (str(error).splitlines() or [""])[0]
    return ReleaseError(
        f"{path}: no networks to go on from ({type(error).__name__}: {said}); restore it from git, "
        "or make it again with `make pretrained`"
    )


def _size_only_config(hidden: int) -> FitConfig:
    """For a network that is not fitted: all but its size is void."""
    return FitConfig(
        hidden=hidden, steps=0, learning_rate=0, weight_decay=0, ensemble=0, seed=0, batch=0
    )
