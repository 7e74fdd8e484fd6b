"""Training of quantile networks: AdamW on pinball loss, all folds and seeds at once.

Training is deterministic: equal tables and seeds give equal networks.
"""

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
from presage.models.training.loss_curves import Observe, observed_rows, observing
from presage.system.arrays import Array
from presage.system.text.progress import Progress

LEVELS = (0.05, 0.1, 0.5, 0.9, 0.95)
ALL_MEMBERS = slice(None)
CHANNELS_LAST = columns("full").index("channels_last")


@dataclass(frozen=True, slots=True)
class FitConfig:
    """Hyperparameters; those of a release come from params.yaml.

    Attributes
    ----------
    hidden : int
        Width of the hidden layers.
    steps : int
        Optimizer steps.
    learning_rate, weight_decay : float
    ensemble : int
        Members per fold.
    seed : int
    batch : int
        Rows, or co-locations, per step; all of them if there are fewer.
    jitter : float
        Standard deviation of the noise added to every standardized column at every step. It keeps
        a network from memorizing the few kinds of jobs in training.
    trees : float in [0, 1]
        Weight of boosted trees in the mean with the network; 0 trains none.
    """

    hidden: int
    steps: int
    learning_rate: float
    weight_decay: float
    ensemble: int
    seed: int
    batch: int = 1024
    jitter: float = 0.0
    trees: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.trees <= 1:
            raise ValueError(f"trees={self.trees}, must be a weight from 0 to 1")


def transform_features(features: Array, feature_set: str) -> Array:
    """Transform features (rows, columns) to network inputs: logarithms of scales."""
    offsets = log_offsets(feature_set)
    out: Array = np.where(
        np.isnan(offsets), features, np.log(np.maximum(features, 0) + np.nan_to_num(offsets, nan=1))
    )
    return out


def log_offsets(feature_set: str) -> Array:
    """Return the log offset per column; NaN if no logarithm is taken."""
    return np.array(
        [np.nan if c.log_offset is None else c.log_offset for c in FEATURE_SETS[feature_set]]
    )


@dataclass(frozen=True, slots=True)
class NetworkInputs:
    """Positions of a network's inputs in a feature matrix.

    Attributes
    ----------
    columns : tuple of int
        Columns that the network reads.
    identity : tuple of int
        Columns that identify the device.
    layout_columns : tuple of int
        Columns that are read a second time, as 0 unless images are channels-last. So the network
        can learn the effect of the layout on one kind of operator.
    components : tuple of int
        Shares of the target's prior, which get component factors.
    """

    columns: tuple[int, ...]
    identity: tuple[int, ...]
    layout_columns: tuple[int, ...] = ()
    components: tuple[int, ...] = ()


def select_inputs(names: Sequence[str], feature_set: str) -> NetworkInputs:
    """Return the inputs with these names in a feature set; the schema has their other roles."""
    known = columns(feature_set)
    read = tuple(map(known.index, names))
    by_layout = tuple(i for i in read if FEATURE_SETS[feature_set][i].depends_on_layout)
    parts = tuple(i for i in read if FEATURE_SETS[feature_set][i].prior_weight is not None)
    return NetworkInputs(read, tuple(map(known.index, IDENTITY)), by_layout, parts)


class ScalarStack(nn.Module):
    """Standardizer, network and scale of the target, for every member of a stack.

    The names of parameters and buffers are keys of the networks' files.
    """

    def __init__(
        self, x: Tensor, y: Tensor, row_weights: Tensor, inputs: NetworkInputs, config: FitConfig
    ) -> None:
        super().__init__()
        members = len(row_weights)
        self.register_buffer("columns", torch.tensor(inputs.columns))
        self.register_buffer("identity", torch.tensor(inputs.identity))
        self.register_buffer("by_layout", torch.tensor(inputs.layout_columns, dtype=torch.long))
        floors = np.log(log_offsets("full")[list(inputs.layout_columns)])
        self.register_buffer("floors", torch.from_numpy(floors).float())
        read = self.read(x).expand(members, -1, -1)
        self.standardize = Standardizer(read, row_weights)
        self.device_effect = DeviceEffect(members, x[:, self.identity], config.hidden + 1)
        self.net = QuantileMLP(members, read.shape[-1], hidden=config.hidden, levels=LEVELS)
        self.parts = ComponentFactors(members, inputs.components) if inputs.components else None
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
        """Return the network's inputs (rows, inputs) from all columns (rows, columns)."""
        read = x[:, self.columns]
        if not len(self.by_layout):
            return read
        is_nhwc = x[:, CHANNELS_LAST : CHANNELS_LAST + 1] > 0
        return torch.cat([read, torch.where(is_nhwc, x[:, self.by_layout], self.floors)], dim=1)

    @property
    def input_count(self) -> int:
        """Columns that a network reads, some of them twice."""
        return int(self.net.first.weight.shape[1])

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return quantiles (members, rows, levels) of transformed features (rows, columns).

        ``noise`` (members, rows, ``input_count``) is added to the standardized columns.
        """
        read = self.standardize(self.read(x).expand(len(self.y_mean), -1, -1))
        if noise is not None:
            read = read + noise
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
    part: slice = ALL_MEMBERS,
    start: ScalarStack | None = None,
    progress: Progress | None = None,
    observe: Observe | None = None,
) -> ScalarStack:
    """Fit a stack of quantile networks, from scratch or by fine-tuning others.

    Parts of a stack can be fitted by several processes: members do not depend on one another. A
    part has noise of its own, and sums in another order than the whole.

    Parameters
    ----------
    x : ndarray of shape (rows, columns)
        Transformed features, all columns of the set.
    y : ndarray of shape (rows,)
        Target.
    row_weights : ndarray of shape (members, rows)
        0 hides a row from a member, which defines the folds.
    inputs : NetworkInputs
    config : FitConfig
    part : slice
        Members to fit and return.
    start : ScalarStack, optional
        Networks to fine-tune, whose sizes and inputs are kept. Weight decay pulls every parameter
        to its initial value (L2-SP: Li, Grandvalet, Davoine, ICML 2018).
    progress : callable, optional
    observe : callable, optional
        Gets the losses (members, :func:`~presage.models.training.loss_curves.observed_rows`) some
        times. It has no effect on the networks.

    Raises
    ------
    TrainingError
        A member that is trained from scratch has fewer than two rows. A fine-tuned member without
        rows keeps its initial parameters.
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
    if part != ALL_MEMBERS:
        take_members(model, torch.arange(len(weights))[part])
        weights, ys = weights[part], ys[part]
        torch.manual_seed(config.seed + part.start)
    levels = torch.tensor(LEVELS)
    order, rows = np.random.default_rng(config.seed), torch.arange(len(y))

    def loss() -> Tensor:
        batch = rows
        if len(rows) > config.batch:
            batch = torch.from_numpy(order.choice(len(y), config.batch, replace=False))
        return sum_of_member_means(per_row(batch, config.jitter), weights[:, batch])

    def per_row(at: Tensor, jitter: float = 0.0) -> Tensor:
        shape = (len(weights), len(at), model.input_count)
        noise = jitter * torch.randn(shape) if jitter else None
        # In units of the target's spread, so that one learning rate serves every target.
        return pinball_loss(model(xs[at], noise), ys[:, at], levels) / model.y_scale[:, :, 0]

    watched = torch.from_numpy(observed_rows(len(y)))
    minimize(
        model, loss, steps=config.steps, learning_rate=config.learning_rate,
        weight_decay=config.weight_decay, to_start=start is not None,
        progress=observing(progress, observe, model, config.steps, lambda: per_row(watched)),
    )  # fmt: skip
    return model.eval()


Stack = TypeVar("Stack", bound=nn.Module)


def copy_stack(start: Stack, members: int) -> Stack:
    """Return a stack of ``members`` copies of the members of ``start``, in turn."""
    model = deepcopy(start)
    count = len(next(iter(model.parameters())))
    take_members(model, torch.arange(members) % count)
    return model


def predict_quantiles(model: ScalarStack, x: Array, *, rows_at_once: int = 4096) -> Array:
    """Return quantiles (members, rows, levels) of transformed features (rows, columns)."""
    with torch.no_grad():
        parts = [
            model(torch.from_numpy(x[start : start + rows_at_once]).float())
            for start in range(0, len(x), rows_at_once)
        ]
    return torch.cat(parts, dim=1).numpy().astype(np.float64)


def check_training_rows(row_weights: Array) -> None:
    """Raise TrainingError if a member of the stack has fewer than two rows."""
    rows = (row_weights > 0).sum(axis=1)
    if rows.size == 0 or rows.min() < 2:
        raise TrainingError(
            f"a fold has {int(rows.min()) if rows.size else 0} training rows, needs at least 2; "
            "measure more jobs (`presage profile --budget ...`)"
        )


def sum_of_member_means(per_row: Tensor, weights: Tensor) -> Tensor:
    """Return the sum over members of each member's weighted mean, so members are independent.

    A batch without rows for a member counts 0 for it.
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
    """Minimize ``loss`` with Adam, a one-cycle learning rate and decoupled decay.

    Weights decay to 0 and other parameters do not decay. With ``to_start``, all parameters decay
    to their initial values.
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
