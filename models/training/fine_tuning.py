"""Files of trained networks, to fine-tune from: one class of devices of one predictor."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from presage.errors import ReleaseError
from presage.features.columns.schema import columns, schema_hash
from presage.models.calibration.margins import DEVICE, JOB, ByLevel, Margins
from presage.models.networks.boosted_trees import BoostedTrees
from presage.models.training.fit import FitConfig, NetworkInputs, ScalarStack
from presage.models.training.fit_interference import InterferenceStack

Stack = TypeVar("Stack", ScalarStack, InterferenceStack)

_TREES = "trees."  # prefix of the trees' arrays in a file


@dataclass(frozen=True)
class TrainedNetworks(Generic[Stack]):
    """Networks of one class of devices, their margins and their training jobs.

    Attributes
    ----------
    stack : ScalarStack or InterferenceStack
    margins : Margins
        Conformal margins of their intervals.
    jobs : frozenset of str
        Digests of the training jobs; empty for files of versions that did not record them.
    trees : BoostedTrees, optional
        Trees that are averaged with the networks. The margins are those of the mean.
    """

    stack: Stack
    margins: Margins
    jobs: frozenset[str] = frozenset()
    trees: BoostedTrees | None = None


def write_networks(networks: TrainedNetworks[Any], path: Path) -> None:
    """Write networks to one ``.npz`` file; equal networks give equal bytes."""
    about = {
        "schema_hash": schema_hash("full"),
        "margins": sorted(networks.margins.default.items()),
        "novelty_margins": {
            name: sorted(networks.margins.novel[name].items())
            for name in sorted(networks.margins.novel)
        },
        "device_margins": [
            [identity, sorted(own.items())] for identity, own in networks.margins.devices
        ],
        "jobs": sorted(networks.jobs),
    }
    state = networks.stack.state_dict()
    if networks.trees is not None:
        state |= networks.trees.state_dict(prefix=_TREES)
    arrays = {name: value.numpy() for name, value in state.items()}
    with path.open("wb") as file:
        np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)


def read_scalar_networks(path: Path) -> TrainedNetworks[ScalarStack]:
    """Read networks of a solo predictor.

    Raises
    ------
    ReleaseError
        The file does not exist, is corrupt, or has another feature schema.
    """
    return _read(path, _make_scalar_stack)


def read_interference_networks(path: Path) -> TrainedNetworks[InterferenceStack]:
    """Read networks of the interference predictor.

    Raises
    ------
    ReleaseError
        The file does not exist, is corrupt, or has another feature schema.
    """
    return _read(path, _make_interference_stack)


def read_training_jobs(path: Path) -> frozenset[str]:
    """Return the digests of the training jobs; empty if the file does not record them.

    Raises
    ------
    ReleaseError
        The file does not exist or is corrupt.
    """
    try:
        with np.load(path) as arrays:
            return frozenset(json.loads(str(arrays["about"])).get("jobs", ()))
    except _READ_ERRORS as error:
        raise _unreadable(path, error) from error


def _make_scalar_stack(state: dict[str, Tensor]) -> ScalarStack:
    """Return a stack with the sizes of these weights."""
    members, _, hidden = state["net.second.weight"].shape
    read, identity, by_layout = (
        state[name].tolist() for name in ("columns", "identity", "by_layout")
    )
    # Placeholder rows, one for each device.
    x = torch.zeros(len(state["device_effect.known"]), len(columns("full")))
    x[:, identity] = state["device_effect.known"]
    weights = torch.ones(members, len(x))
    parts = state["parts.positions"].tolist() if "parts.positions" in state else ()
    inputs = NetworkInputs(tuple(read), tuple(identity), tuple(by_layout), tuple(parts))
    return ScalarStack(x, weights, weights, inputs, _size_only_config(hidden))


def _make_interference_stack(state: dict[str, Tensor]) -> InterferenceStack:
    members, n_in, hidden = state["net.member.weight"].shape
    placeholder = torch.ones(members, 1, 1, n_in)
    return InterferenceStack(placeholder, placeholder[..., 0], _size_only_config(hidden))


# Exceptions of a corrupt archive, or of an archive with other content.
_READ_ERRORS = (
    OSError, EOFError, BadZipFile, zlib.error,
    ValueError, LookupError, TypeError, RuntimeError,
)  # fmt: skip


def _read(path: Path, make_stack: Callable[[dict[str, Tensor]], Stack]) -> TrainedNetworks[Stack]:
    """Read networks into a stack that ``make_stack`` creates from the weights."""
    try:
        with np.load(path) as arrays:
            about = json.loads(str(arrays["about"]))
            state = {name: torch.from_numpy(arrays[name]) for name in arrays if name != "about"}
        schema = str(about["schema_hash"])
        if schema == schema_hash("full"):
            margins = Margins(
                dict(about["margins"]),
                _read_novel(about),
                tuple((tuple(identity), dict(own)) for identity, own in about["device_margins"]),
            )
            of_trees = {name: state.pop(name) for name in list(state) if name.startswith(_TREES)}
            stack = make_stack(state)
            stack.load_state_dict(state)
            trees = None
            if of_trees:
                trees = BoostedTrees({k.removeprefix(_TREES): v for k, v in of_trees.items()})
            jobs = frozenset(about.get("jobs", ()))
            return TrainedNetworks(stack.eval(), margins, jobs, trees)
    except _READ_ERRORS as error:
        raise _unreadable(path, error) from error
    raise ReleaseError(
        f"{path}: the networks have feature schema {schema}, this version has "
        f"{schema_hash('full')}; rebuild them with `make pretrained`"
    )


def _read_novel(about: Mapping[str, Any]) -> dict[str, ByLevel]:
    """Return the widening by novelty; older files have one for jobs and devices together."""
    if "stranger_margins" in about:
        return {name: dict(about["stranger_margins"]) for name in (JOB, DEVICE)}
    return {name: dict(widening) for name, widening in about["novelty_margins"].items()}


def _unreadable(path: Path, error: Exception) -> ReleaseError:
    cause = (str(error).splitlines() or [""])[0]
    return ReleaseError(
        f"{path}: no networks to fine-tune ({type(error).__name__}: {cause}); restore the file "
        "from git, or rebuild it with `make pretrained`"
    )


def _size_only_config(hidden: int) -> FitConfig:
    """Return a configuration of a network that is not trained: only its size is used."""
    return FitConfig(
        hidden=hidden, steps=0, learning_rate=0, weight_decay=0, ensemble=0, seed=0, batch=0
    )
