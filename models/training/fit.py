"""Training: AdamW on pinball loss, all folds and seeds side by side, deterministic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from presage.errors import TrainingError
from presage.features.columns.schema import FEATURE_SETS, columns
from presage.models.networks.component_factors import ComponentFactors
from presage.models.networks.quantile_mlp import QuantileMLP
from presage.models.networks.stacked import Standardizer, pinball_loss, take_members
from presage.models.training.device_effect import IDENTITY, DeviceEffect
from presage.system.arrays import Array

Progress = Callable[[int, int], None]

LEVELS = (0.05, 0.1, 0.5, 0.9, 0.95)
CHANNELS_LAST = columns("full").index("channels_last")


@dataclass(frozen=True, slots=True)
class FitConfig:
    """Hyper-parameters, of a release from params.yaml.

    ``batch`` counts rows, or co-locations; all of them where there are no more. ``jitter`` is the
    deviation of what is added to every standardized column at every step: a network that has seen
    few kinds of jobs learns each by heart; one that sees them blurred must tell by what they have
    in common.
    """

    hidden: int
    steps: int
    learning_rate: float
    weight_decay: float
    ensemble: int
    seed: int
    batch: int = 1024
    jitter: float = 0.0


def transform_features(features: Array, feature_set: str) -> Array:
    """Features of shape (rows, columns) as the networks see them: logarithms of scales."""
    offsets = log_offsets(feature_set)
    out: Array = np.where(
        np.isnan(offsets), features, np.log(np.maximum(features, 0) + np.nan_to_num(offsets, nan=1))
    )
    return out


def log_offsets(feature_set: str) -> Array:
    """Offset per column, NaN where the column is used as it is."""
    return np.array(
        [np.nan if c.log_offset is None else c.log_offset for c in FEATURE_SETS[feature_set]]
    )


@dataclass(frozen=True, slots=True)
class NetworkInputs:
    """Positions, in a feature matrix, of what a network reads, and of what names the device.

    ``by_layout`` are read once more where images are channels-last, elsewhere as if they were 0:
    a network can then tell what the layout does to one kind of operator, without columns for it.
    ``parts`` are shares of the target's prior, which have factors of their own.
    """

    columns: tuple[int, ...]
    identity: tuple[int, ...]
    by_layout: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()


def select_inputs(names: Sequence[str], feature_set: str) -> NetworkInputs:
    """Inputs with these names in a feature set; which by layout, which parts, columns say."""
    known = columns(feature_set)
    read = tuple(map(known.index, names))
    by_layout = tuple(i for i in read if FEATURE_SETS[feature_set][i].depends_on_layout)
    parts = tuple(i for i in read if FEATURE_SETS[feature_set][i].prior_weight is not None)
    return NetworkInputs(read, tuple(map(known.index, IDENTITY)), by_layout, parts)


class ScalarStack(nn.Module):
    """Standardizer, network and the scale of the target, for every member of a stack."""

    def __init__(
        self, x: Tensor, y: Tensor, row_weights: Tensor, inputs: NetworkInputs, config: FitConfig
    ) -> None:
        super().__init__()
        members = len(row_weights)
        self.register_buffer("columns", torch.tensor(inputs.columns))
        self.register_buffer("identity", torch.tensor(inputs.identity))
        self.register_buffer("by_layout", torch.tensor(inputs.by_layout, dtype=torch.long))
        floors = np.log(log_offsets("full")[list(inputs.by_layout)])
        self.register_buffer("floors", torch.from_numpy(floors).float())
        read = self.read(x).expand(members, -1, -1)
        self.standardize = Standardizer(read, row_weights)
        self.device_effect = DeviceEffect(members, x[:, self.identity], config.hidden + 1)
        self.net = QuantileMLP(members, read.shape[-1], hidden=config.hidden, levels=LEVELS)
        self.parts = ComponentFactors(members, inputs.parts) if inputs.parts else None
        total = row_weights.sum(-1)
        mean = (row_weights * y).sum(-1) / total
        spread = ((row_weights * (y - mean[:, None]) ** 2).sum(-1) / total).sqrt()
        self.register_buffer("y_mean", mean[:, None, None])
        self.register_buffer("y_scale", spread.clamp_min(1e-3)[:, None, None])

    columns: Tensor
    identity: Tensor
    by_layout: Tensor
    floors: Tensor
    y_mean: Tensor
    y_scale: Tensor

    def read(self, x: Tensor) -> Tensor:
        """(rows, columns of the feature set) -> (rows, inputs of the network)."""
        read = x[:, self.columns]
        if not len(self.by_layout):
            return read
        is_nhwc = x[:, CHANNELS_LAST : CHANNELS_LAST + 1] > 0
        return torch.cat([read, torch.where(is_nhwc, x[:, self.by_layout], self.floors)], dim=1)

    def forward(self, x: Tensor, jitter: float = 0.0) -> Tensor:
        """(rows, columns of the feature set) -> learnt quantiles (members, rows, levels)."""
        read = self.standardize(self.read(x).expand(len(self.y_mean), -1, -1))
        if jitter:
            read = read + jitter * torch.randn_like(read)
        out: Tensor = self.net(read, self.device_effect(x[:, self.identity]))
        out = out * self.y_scale + self.y_mean
        return out if self.parts is None else out + self.parts(x)


def fit_scalar(
    x: Array,
    y: Array,
    row_weights: Array,
    inputs: NetworkInputs,
    config: FitConfig,
    *,
    start: ScalarStack | None = None,
    progress: Progress | None = None,
) -> ScalarStack:
    """Fit a stack of quantile networks, from nothing or from where others have come.

    Parameters
    ----------
    x : ndarray of shape (rows, columns)
        Transformed features, all of the set.
    y : ndarray of shape (rows,)
        What is learnt.
    row_weights : ndarray of shape (members, rows)
        0 hides a row from a member: that is what makes a fold.
    start : ScalarStack, optional
        Networks to begin with, to which the decay draws every parameter (L2-SP: Li, Grandvalet,
        Davoine, ICML 2018); their sizes and their reading of the columns are kept.

    Raises
    ------
    TrainingError
        A member that begins from nothing sees fewer than two rows. One that goes on and sees none
        stays where it began.
    """
    if start is None:
        check_training_rows(row_weights)
    torch.manual_seed(config.seed)
    weights = torch.tensor(row_weights).float()
    xs = torch.tensor(x).float()
    ys = torch.tensor(y).float().expand(len(row_weights), -1)
    if start is None:
        model = ScalarStack(xs, ys, weights, inputs, config)
    else:
        model = copy_stack(start, len(weights)).train()
        model.device_effect.add_devices(xs[:, model.identity])
    levels = torch.tensor(LEVELS)
    order, rows = np.random.default_rng(config.seed), torch.arange(len(y))

    def loss() -> Tensor:
        seen = rows
        if len(rows) > config.batch:
            seen = torch.from_numpy(order.choice(len(y), config.batch, replace=False))
        # In units of the target's spread, so that one learning rate serves every target.
        quantiles = model(xs[seen], config.jitter)
        per_row = pinball_loss(quantiles, ys[:, seen], levels) / model.y_scale[:, :, 0]
        return sum_of_member_means(per_row, weights[:, seen])

    minimize(
        model, loss, steps=config.steps, learning_rate=config.learning_rate,
        weight_decay=config.weight_decay, to_start=start is not None, progress=progress,
    )  # fmt: skip
    return model.eval()


Stack = TypeVar("Stack", bound=nn.Module)


def copy_stack(start: Stack, members: int) -> Stack:
    """A stack of as many members, each a copy of one of ``start``, in turn."""
    model = deepcopy(start)
    count = len(next(iter(model.parameters())))
    take_members(model, torch.arange(members) % count)
    return model


def predict_quantiles(model: ScalarStack, x: Array, *, rows_at_once: int = 4096) -> Array:
    """What a stack learnt of transformed features (rows, columns): (members, rows, levels)."""
    with torch.no_grad():
        parts = [
            model(torch.from_numpy(x[start : start + rows_at_once]).float())
            for start in range(0, len(x), rows_at_once)
        ]
    return torch.cat(parts, dim=1).numpy().astype(np.float64)


def check_training_rows(row_weights: Array) -> None:
    """Refuse a stack of which a member sees fewer than two rows."""
    rows = (row_weights > 0).sum(axis=1)
    if rows.size == 0 or rows.min() < 2:
        raise TrainingError(
            f"a fold has {int(rows.min()) if rows.size else 0} training rows, needs at least 2; "
            "measure more jobs (`presage profile --budget ...`)"
        )


def sum_of_member_means(per_row: Tensor, weights: Tensor) -> Tensor:
    """Sum over the stack of each member's own mean: members never touch one another.

    A batch may hold nothing that a member may see.
    """
    return ((per_row * weights).sum(-1) / weights.sum(-1).clamp_min(1)).sum()


def minimize(
    model: nn.Module,
    loss: Callable[[], Tensor],
    *,
    steps: int,
    learning_rate: float,
    weight_decay: float,
    to_start: bool = False,
    progress: Progress | None,
) -> None:
    """Adam, warmed up and cooled down, with decoupled decay; ``loss`` is asked every step.

    Weights decay to 0 and other parameters not at all; or ``to_start``, all to where they began.
    """
    decayed = [p for name, p in model.named_parameters() if to_start or name.endswith("weight")]
    goals = [p.detach().clone() if to_start else torch.zeros_like(p) for p in decayed]
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=learning_rate, total_steps=steps
    )
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter, goal in zip(decayed, goals, strict=True):
                parameter.lerp_(goal, schedule.get_last_lr()[0] * weight_decay)
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress(step + 1, steps)
