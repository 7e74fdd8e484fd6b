"""Error of forecasts without each mechanism of networks and features, on two deals of folds.

Run ``python -m benchmarks.predictors.mechanisms data/.pretraining/features`` after `make
pretrained`: some hours of one core. Errors are kept in build/mechanisms.jsonl, so that a run that
was interrupted goes on; docs/benchmarks/mechanisms.md has the splits that are complete.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from torch import Tensor
from torch.nn import functional as F

from benchmarks.markdown import write_page
from presage.features.device.device_class import PROCESSOR
from presage.features.job.architecture_groups import architecture_group
from presage.features.quantities.quantity import Quantity
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.networks import component_factors
from presage.models.networks.quantile_mlp import QuantileMLP
from presage.models.networks.stacked import ordered_quantiles
from presage.models.training import device_effect, fit
from presage.models.training.fit import FitConfig, NetworkInputs
from presage.models.training.splits import FOLDS, Folds
from presage.models.training.torch_settings import make_torch_deterministic
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.fit_settings import read_settings
from presage.system.arrays import Array

PAGE = Path("docs/benchmarks/mechanisms.md")
RESULTS = Path("build/mechanisms.jsonl")
DEALS = (0, 1)
PREDICTORS = ("compute_utilization", "memory", "step_time")
MIDDLE = fit.LEVELS.index(0.5)
NOTHING = "nothing"
Results = Mapping[tuple[str, str, int], float]  # by split, part that is left out, and deal
STEP_TIME, MEMORY = QUANTITIES["step_time"], QUANTITIES["memory"]


class WithoutLinearPath(QuantileMLP):
    """The network without the linear path beside its hidden layers."""

    def forward(self, x: Tensor, effect: Tensor) -> Tensor:
        hidden = F.silu(self.first(x) + effect[..., :-1])
        raw = self.head(F.silu(self.second(hidden)))
        out: Tensor = ordered_quantiles(raw, self.middle) + effect[..., -1:]
        return out


class WithoutSecondLayer(QuantileMLP):
    """The network with one hidden layer."""

    def forward(self, x: Tensor, effect: Tensor) -> Tensor:
        hidden = F.silu(self.first(x) + effect[..., :-1])
        quantiles = ordered_quantiles(self.head(hidden), self.middle)
        out: Tensor = quantiles + self.linear(x) + effect[..., -1:]
        return out


@dataclass(frozen=True)
class Without:
    """What training leaves out.

    Attributes
    ----------
    name : str
    quantities : tuple of str
        Quantities that have the mechanism.
    patches : sequence of (module, name, value)
        Replacements of constants and classes while a network is trained and used.
    columns : tuple of str
        Columns that the network does not read.
    """

    name: str
    quantities: tuple[str, ...] = PREDICTORS
    patches: Sequence[tuple[ModuleType, str, Any]] = ()
    columns: tuple[str, ...] = ()
    prior: bool = True
    inputs: Callable[[NetworkInputs], NetworkInputs] = field(default=lambda inputs: inputs)
    config: Callable[[FitConfig], FitConfig] = field(default=lambda config: config)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the patches."""
        with ExitStack() as stack:
            for module, name, value in self.patches:
                stack.enter_context(patch.object(module, name, value))
            yield


WITH_PARTS = ("memory", "step_time")
TIME = ("step_time",)
MISFITS = tuple(name for name in STEP_TIME.inputs if name.startswith("misfit_share"))
KERNELS = tuple(
    name for name in MEMORY.inputs if name.endswith((".forward", ".backward")) and "share" in name
)
MOVED = tuple(name for name in MEMORY.inputs if name.startswith("moved_share"))
VARIANTS = (
    Without(NOTHING),
    Without("prior", WITH_PARTS, prior=False, inputs=lambda read: replace(read, components=())),
    Without("component factors", WITH_PARTS, inputs=lambda read: replace(read, components=())),
    Without(
        "conditions of component factors", WITH_PARTS,
        [(component_factors, "CONDITION_LIMIT", 1e-6)],
    ),
    Without("limit of conditions", WITH_PARTS, [(component_factors, "CONDITION_LIMIT", 1e3)]),
    Without("reading by layout", TIME, inputs=lambda read: replace(read, layout_columns=())),
    Without("device effects", patches=[(device_effect, "HIDDEN_ROW_FRACTION", 1.0)]),
    Without("hiding devices in training", patches=[(device_effect, "HIDDEN_ROW_FRACTION", -1.0)]),
    Without("linear path", patches=[(fit, "QuantileMLP", WithoutLinearPath)]),
    Without("second hidden layer", patches=[(fit, "QuantileMLP", WithoutSecondLayer)]),
    Without("half of the hidden units", config=lambda c: replace(c, hidden=c.hidden // 2)),
    Without("half of the steps", config=lambda c: replace(c, steps=c.steps // 2)),
    Without("ensemble", config=lambda c: replace(c, ensemble=1)),
    Without("jitter", config=lambda c: replace(c, jitter=0.0)),
    Without("weight decay", config=lambda c: replace(c, weight_decay=0.0)),
    Without("batch_size", columns=("batch_size",)),
    Without("op_count", columns=("op_count",)),
    Without("bytes_per_op", TIME, columns=("bytes_per_op",)),
    Without("largest_input", TIME, columns=("largest_input",)),
    Without("share", TIME, columns=("share",)),
    Without("loads_data, loading_share", TIME, columns=("loads_data", "loading_share")),
    Without("release of the framework", WITH_PARTS,
            columns=("framework_release", "channels_last_release")),
    Without("precisions", WITH_PARTS, columns=("half_precision", "tf32", "fp64")),
    Without("trains", WITH_PARTS, columns=("trains",)),
    Without("log_compute_over_memory", TIME, columns=("log_compute_over_memory",)),
    Without("ill-shaped shares", TIME, columns=MISFITS),
    Without("largest kernels", ("memory",), columns=KERNELS),
    Without("bytes moved by operators", ("memory",), columns=MOVED),
)  # fmt: skip


@dataclass(frozen=True)
class Split:
    """Rows of a quantity, and the name of the group that a fold leaves out.

    ``groups`` has a name for each row. Each is a fold of its own if there are at most six.
    """

    title: str
    quantity: Quantity
    rows: pd.DataFrame
    groups: Sequence[str]

    def folds(self, deal: int) -> Folds:
        """Return the fold of each row."""
        names = sorted(set(self.groups))
        if len(names) <= FOLDS + 1:
            fold_of = {name: number for number, name in enumerate(names)}
        else:
            fold_of = {name: _digest(f"{deal} {name}") % FOLDS for name in names}
        return np.array([fold_of[name] for name in self.groups], dtype=np.int64)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def error(split: Split, without: Without, deal: int) -> float:
    """Return the mean error of all rows: in percent of a scale, in points of a fraction."""
    quantity, rows = split.quantity, split.rows
    full = feature_matrix(rows, "full")
    measured = rows[quantity.column].to_numpy(np.float64)
    target = quantity if without.prior else replace(quantity, prior=None)
    x = fit.transform_features(full, "full")
    names = [name for name in quantity.inputs if name not in without.columns]
    inputs = without.inputs(fit.select_inputs(names, "full"))
    settings = read_settings(quantity.name).select(len(rows), is_fine_tuning=False)
    config = without.config(replace(settings, seed=deal))
    folds = split.folds(deal)
    kinds = np.unique(folds)
    weights = np.repeat((folds != kinds[:, None]).astype(np.float64), config.ensemble, axis=0)
    with without.applied():
        y = target.to_learnt(measured, full)
        outputs = fit.predict_quantiles(fit.fit_scalar(x, y, weights, inputs, config), x)
    means = outputs.reshape(len(kinds), config.ensemble, len(rows), -1).mean(axis=1)
    own = means[np.searchsorted(kinds, folds), np.arange(len(rows))]
    median = target.to_measured(own, full)[:, MIDDLE]
    return float(_errors(quantity, median, measured).mean())


def _errors(quantity: Quantity, median: Array, measured: Array) -> Array:
    apart = np.abs(median - measured)
    return 100 * (apart / measured if quantity.is_scale else apart)


def make_splits(solo: pd.DataFrame) -> list[Split]:
    """Return the splits of public tables and of our own campaigns."""
    group = solo["family"].map(architecture_group)
    source = solo["source"]
    own = solo["device_class"] == PROCESSOR
    trains = solo["full.trains"] == 1
    timm = source.str.contains("pytorch-image-models") & trains
    vision = source.str.contains("pytorch-gpu-benchmark") & trains
    by_model, by_family = solo["model"], solo["family"]
    plan = [
        ("timm, model", STEP_TIME, timm, by_model),
        ("timm, group", STEP_TIME, timm, group),
        ("torchvision, GPU", STEP_TIME, vision, solo["device_kind"]),
        ("torchvision, group", STEP_TIME, vision, group),
    ]
    for quantity in map(QUANTITIES.__getitem__, PREDICTORS):
        plan += [(f"{quantity.label}, {name}", quantity, own, names)
                 for name, names in (("job", solo["job_id"]), ("family", by_family))]  # fmt: skip
    return [
        Split(title, quantity, solo[chosen], list(names[chosen]))
        for title, quantity, where, names in plan
        for chosen in [where & solo[quantity.column].notna()]
    ]


def read_results() -> Results:
    """Return the errors that were measured so far."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {(split, without, deal): found for split, without, deal, found in map(json.loads, lines)}


def measure(splits: Sequence[Split]) -> None:
    """Measure what is missing, and append it to the results."""
    known = read_results()
    for split in splits:
        for without in variants_of(split):
            for deal in DEALS:
                if (split.title, without.name, deal) in known:
                    continue
                found = error(split, without, deal)
                sys.stderr.write(f"{split.title}, without {without.name}, {deal}: {found:.1f}\n")
                with RESULTS.open("a") as file:
                    file.write(json.dumps([split.title, without.name, deal, found]) + "\n")


def variants_of(split: Split) -> list[Without]:
    """Return the variants whose part the quantity of a split has."""
    return [one for one in VARIANTS if split.quantity.name in one.quantities]


def change(found: Sequence[float], base: Sequence[float]) -> str:
    """Return the changes of the error in percent of it, by deal; bold if both are below 1 %."""
    cells = [100 * (one / before - 1) for one, before in zip(found, base, strict=True)]
    text = "; ".join(f"{cell:+.1f}" for cell in cells)
    return f"**{text}**" if max(cells) < 1 else text


def page(splits: Sequence[Split], results: Results) -> list[str]:
    """Return the lines of the page; splits that are not complete are left out."""
    complete = [split for split in splits if _is_complete(split, results)]
    lines = [
        "# Worth of each mechanism",
        "",
        "What does each part of the networks and of their features contribute? Written by",
        "`python -m benchmarks.predictors.mechanisms`. Each network is trained without one of its"
        " parts, with the settings of `params.yaml` and without trees, on two deals of folds and"
        " seeds. The first row is the mean error of the complete network, by deal: in percent of"
        " step times and memory, in points of utilization. The others are changes of this error, in"
        " percent of it. Bold: in both deals, leaving the part out costs less than 1 % or helps.",
        "",
        "| without | " + " | ".join(split.title for split in complete) + " |",
        "|---|" + "---:|" * len(complete),
    ]  # fmt: skip
    for without in VARIANTS:
        cells = [_cell(split, without, results) for split in complete]
        if set(cells) != {"-"}:
            lines.append(f"| {without.name} | {' | '.join(cells)} |")
    rows = ", ".join(f"{split.title}: {len(split.rows):,}" for split in complete)
    return [
        *lines,
        "",
        f"Rows: {rows}. After the comma is what a fold leaves out, one of five or each GPU. *timm*"
        " has training steps on an RTX 3090, *torchvision* steps on six GPUs, and the others are"
        " the committed campaigns on processors, with five folds of families. These have one kind"
        " of device, one layout of images and little but fp32, so that they say nothing of parts"
        " for devices, layouts and precisions.",
    ]


def _is_complete(split: Split, results: Results) -> bool:
    names = [one.name for one in variants_of(split)]
    return all((split.title, name, deal) in results for name in names for deal in DEALS)


def _cell(split: Split, without: Without, results: Results) -> str:
    if split.quantity.name not in without.quantities:
        return "-"
    found, base = (
        [results[split.title, name, deal] for deal in DEALS] for name in (without.name, NOTHING)
    )
    if without.name == NOTHING:
        return "; ".join(f"{one:.1f}" for one in found)
    return change(found, base)


def main() -> None:
    """Measure all splits, and write the page."""
    make_torch_deterministic()
    RESULTS.parent.mkdir(exist_ok=True)
    splits = make_splits(pd.read_parquet(Path(sys.argv[1]) / "solo.parquet"))
    if "--page-only" not in sys.argv:
        measure(splits)
    write_page(PAGE, page(splits, read_results()))


if __name__ == "__main__":
    main()
