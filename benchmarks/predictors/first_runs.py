"""Forecast errors after the first runs, written to docs/benchmarks/first_runs.md.

Run ``python -m benchmarks.predictors.first_runs DATASETS``, the folder of the sources' files
(docs/pipeline/importing.md). Networks are trained as by ``presage benchmark``. Offsets are those of
a server, with prior deviations that are estimated without the rows that are left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.markdown import write_page
from presage.features.columns.schema import matrix
from presage.models.offsets import terms
from presage.models.offsets.evidence import Evidence, EvidenceSums, Terms
from presage.models.offsets.random_effects import Spread, fit_effects
from presage.models.offsets.spread_fit import estimate_spread
from presage.models.training.fit import LEVELS
from presage.models.training.torch_settings import make_torch_deterministic
from presage.pipelines.benchmark.benchmark_splits import split_folds
from presage.pipelines.benchmark.colocated import Colocated
from presage.pipelines.benchmark.files import read_tables
from presage.pipelines.benchmark.interference import NOISE, InterferenceTask
from presage.pipelines.benchmark.solo import SoloTask
from presage.pipelines.benchmark.tasks import TASKS
from presage.pipelines.evaluation import cross_validation as cv
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.serving.offsets.offset_learner import LARGEST_DEVIATIONS
from presage.system.arrays import Array, Mask, Names

PAGE = Path("docs/benchmarks/first_runs.md")
SEED = 0
DRAWS = 20  # of the runs that are learned from
MOST_ROWS = 600  # drawn for an estimate of deviations, whose time grows with their cube
RUNS, CO_RUNS = (0, 1, 2, 5), (0, 1, 3, 5)
LOW, MEDIAN, HIGH = (LEVELS.index(level) for level in (0.1, 0.5, 0.9))

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Errors:
    """Logarithmic errors of forecasts by networks that were not trained on a row's group.

    Attributes
    ----------
    group : ndarray of str, shape (rows,)
        What was left out: a device, or a family.
    error : ndarray of shape (rows,)
        Logarithm of measured over predicted.
    low, high : ndarray of shape (rows,)
        Ends of the 80 % interval, as logarithms over the median.
    terms : sequence of Terms
    """

    group: Names
    error: Array
    low: Array
    high: Array
    terms: Sequence[Terms]


@dataclass(frozen=True)
class Corrected:
    """Errors after some runs, over all draws.

    ``by_group`` has MAPE and coverage in per cent, and the rows of all draws.
    """

    by_group: Mapping[str, tuple[float, float, int]]

    @property
    def mape(self) -> float:
        """Error over the rows of all groups."""
        return self._mean(0)

    @property
    def coverage(self) -> float:
        """Coverage of the 80 % interval over the rows of all groups."""
        return self._mean(1)

    def _mean(self, position: int) -> float:
        weights = [row[2] for row in self.by_group.values()]
        return float(np.average([row[position] for row in self.by_group.values()], weights=weights))


# Rows to learn from, among those of a group: a mask of all rows for each draw.
Choice = Callable[[str], Iterator[Mask]]


def spreads(errors: Errors, levels: Sequence[str]) -> dict[str, Spread]:
    """Return prior deviations for each group, estimated on the rows of all others."""
    out = {}
    for group in np.unique(errors.group):
        others = np.flatnonzero(errors.group != group)
        others = np.random.default_rng(SEED).permutation(others)[:MOST_ROWS]
        parts = [errors.terms[i] for i in others.tolist()]
        out[str(group)] = estimate_spread(errors.error[others], parts, levels)
    return out


def correct(
    errors: Errors, spread_of: Mapping[str, Spread], choose: Choice, sign: float
) -> Corrected:
    """Return errors of the rows that were not learned from.

    ``sign`` is -1 for the relative error of a time, and 1 for that of a speed.
    """
    by_group = {}
    for group, spread in spread_of.items():
        off: list[float] = []
        inside: list[bool] = []
        for learned in choose(group):
            sums = EvidenceSums(LARGEST_DEVIATIONS * spread.total)
            for i in np.flatnonzero(learned).tolist():
                sums.add(Evidence(i, errors.terms[i], float(errors.error[i])))
            fitted = fit_effects(sums.cells, spread)
            rows = np.flatnonzero((errors.group == group) & ~learned)
            offsets = [fitted.offset(errors.terms[i]) for i in rows.tolist()]
            left = errors.error[rows] - np.array(offsets)
            off += (100 * np.abs(np.exp(sign * left) - 1)).tolist()
            inside += ((errors.low[rows] <= left) & (left <= errors.high[rows])).tolist()
        by_group[group] = float(np.mean(off)), 100 * float(np.mean(inside)), len(off)
    return Corrected(by_group)


def solo_errors(
    task: SoloTask, files: Sequence[Path], split: str, progress: Progress
) -> tuple[Errors, Names]:
    """Return the errors of a solo task, and the precision of each row."""
    rows = task.rows(read_tables(files, GraphCache()))
    rows = rows.take(np.isfinite(rows.measured))
    y, raw = task.left_out_quantiles(rows, split, seed=SEED, progress=progress)
    folds = split_folds(rows.metadata, split, seed=SEED)
    ends = cv.calibrate_out_of_fold(y, raw, folds, rows.devices)
    median = ends[:, MEDIAN]
    precision = np.array([one.job.job.precision for one in rows.placements], dtype=object)
    features = matrix(rows.placements, "full")
    keys, bound = terms.job_keys(features), terms.boundness(features)
    places = zip(rows.devices, precision, keys, bound, strict=True)
    parts = [terms.solo_terms(*place) for place in places]
    group = rows.metadata[split].to_numpy(object)
    errors = Errors(group, y - median, ends[:, LOW] - median, ends[:, HIGH] - median, parts)
    return errors, precision


def runs_of_each(errors: Errors, stratum: Names, runs: int) -> Choice:
    """Return the choice of some runs of each stratum, such as a precision, of a group."""

    def choose(group: str) -> Iterator[Mask]:
        for draw in range(DRAWS if runs else 1):
            rng = np.random.default_rng([SEED, draw])
            learned = np.zeros(len(errors.error), dtype=bool)
            for name in np.unique(stratum[errors.group == group]):
                rows = np.flatnonzero((errors.group == group) & (stratum == name))
                # A stratum that is not larger has no row left to predict.
                learned[rng.permutation(rows)[: min(runs, len(rows) - 1)]] = True
            yield learned

    return choose


@dataclass(frozen=True)
class Pairs:
    """Victims of co-locations, and for each left-out job the co-locations with others."""

    errors: Errors
    colocation: Array
    partners: Mapping[tuple[str, str], Mapping[str, int]]  # by job and device: partner, co-location
    family: Mapping[str, str]


def pair_errors(files: Sequence[Path], progress: Progress) -> Pairs:
    """Return the errors of slowdowns in co-locations with families that are left out."""
    task = InterferenceTask()
    rows: Colocated = task.rows(read_tables(files, GraphCache()))
    y, raw = task.left_out_quantiles(rows, "family", seed=SEED, progress=progress)
    victims = rows.members[rows.is_victim]
    kinds, jobs = victims["device"].to_numpy(object), victims["job"].to_numpy(object)
    folds = split_folds(victims, "family", seed=SEED)
    raw = cv.calibrate_out_of_fold(y, raw, folds, kinds)
    log_slowdown, quantiles = NOISE * np.sinh(y), NOISE * np.sinh(raw)
    median = quantiles[:, MEDIAN]
    together: dict[int, list[str]] = {}
    for line in rows.members.to_dict("records"):
        together.setdefault(line["colocation"], []).extend([line["job"]] * line["count"])
    parts: list[Terms] = []
    partners: dict[tuple[str, str], dict[str, int]] = {}
    for at, kind, job in zip(victims["colocation"], kinds, jobs, strict=True):
        others = list(together[at])
        others.remove(job)
        parts.append(terms.pair_terms(kind, job.encode(), [one.encode() for one in others]))
        for one, other in ((job, others[0]), (others[0], job)):
            partners.setdefault((one, kind), {})[other] = at
    errors = Errors(
        victims["family"].to_numpy(object), log_slowdown - median,
        quantiles[:, LOW] - median, quantiles[:, HIGH] - median, parts,
    )  # fmt: skip
    family = dict(zip(rows.members["job"], rows.members["family"], strict=True))
    return Pairs(errors, victims["colocation"].to_numpy(), partners, family)


def co_runs_of_each(pairs: Pairs, runs: int) -> Choice:
    """Return the choice of co-runs of each job of a family with jobs of other families."""

    def choose(group: str) -> Iterator[Mask]:
        for draw in range(DRAWS if runs else 1):
            rng = np.random.default_rng([SEED, draw])
            learned: set[int] = set()
            for (job, _), partners in sorted(pairs.partners.items()):
                if pairs.family[job] != group:
                    continue
                known = [at for one, at in partners.items() if pairs.family[one] != group]
                learned |= set(rng.permutation(known)[:runs].tolist())
            yield np.isin(pairs.colocation, list(learned))

    return choose


def with_itself_and(pairs: Pairs, fixed: Sequence[str]) -> Choice:
    """Return the choice of each job's co-runs with itself and with fixed partners."""

    def choose(group: str) -> Iterator[Mask]:
        learned = {
            partners[one]
            for (job, _), partners in pairs.partners.items()
            if pairs.family[job] == group
            for one in (job, *fixed)
            if one in partners
        }
        yield np.isin(pairs.colocation, list(learned))

    return choose


TORCHVISION = ("torchvision/torchvision_step_time.csv.gz",)
GAVEL = ("gavel/pairs.csv.gz", "gavel/isolated.csv.gz")
STEPS, SLOWDOWNS = "Training step, six GPUs", "Slowdown of pairs, Gavel"
PARTNER = "gavel/ResNet-50/b32"
INTRODUCTION = f"""\
How much the first runs help on a device, or with a family of jobs, that was not in training.
Written by `python -m benchmarks.predictors.first_runs DATASETS`, seed {SEED}. Each GPU, or each
family, is left out of the training of the networks in turn. Then some of its runs correct the
forecasts of the others, as a [server](../forecasts/first_runs.md) does. Runs that were learned from
are not in the errors. Runs are drawn {DRAWS} times; figures are means over the draws.

Prior deviations are estimated on the rows of the other GPUs or families, whose networks were not
trained on the row's own. Settings of the networks: see [public tables](public_tables.md). That a
slope by compute or memory bound and logarithms of slowdowns are used was chosen by the figures on
this page.

- **runs**: of each precision, drawn at random.
- **co-runs**: of each job on each GPU, with jobs of other families, drawn at random. Both jobs
  report.
- **itself and ResNet-50**: each job on each GPU with itself and with ResNet-50, batch 32.
- **covers**: the share of 80 % intervals that hold, moved with the median and as wide as before."""
LIMITS = """\
No public table has memory or utilization on several GPUs, so there is no figure of them. Inference
steps of timm's models are not on this page either."""


def page(
    solo: Mapping[int, Corrected],
    pairs: Mapping[str, Corrected],
    found: Mapping[str, Mapping[str, Spread]],
) -> list[str]:
    """Return the page's lines; ``found`` are the deviations by title and left-out group."""
    return [
        "# Forecast error after the first runs",
        "",
        INTRODUCTION,
        "",
        "| what | left out | learned from | MAPE % (goal) | 80 % covers | MAPE by group |",
        "|---|---|---|---|---:|---|",
        *(
            _row(STEPS, "device", f"{runs} runs", GOALS.get(("solo", runs)), one)
            for runs, one in solo.items()
        ),
        *(
            _row(SLOWDOWNS, "family", name, GOALS.get(("pairs", name)), one)
            for name, one in pairs.items()
        ),
        "",
        LIMITS,
        "",
        "## Prior deviations",
        "",
        "Logarithms. The rest is of the job on the device, or of the co-location.",
        "",
        "| what | left out | deviations |",
        "|---|---|---|",
        *(
            f"| {title} | {group} | {_deviations(spread)} |"
            for title, by_group in found.items()
            for group, spread in by_group.items()
        ),
    ]


GOALS = {("solo", 1): 15, ("solo", 5): 13, ("pairs", "1 co-runs"): 17, ("pairs", "3 co-runs"): 15.5}


def _row(title: str, left_out: str, learned: str, goal: float | None, found: Corrected) -> str:
    mape = f"{found.mape:.1f}" + ("" if goal is None else f" ({goal:g})")
    groups = ", ".join(f"{name} {row[0]:.1f}" for name, row in found.by_group.items())
    return f"| {title} | {left_out} | {learned} | {mape} | {found.coverage:.0f} | {groups} |"


def _deviations(spread: Spread) -> str:
    parts = {**spread.effects, "rest": spread.cell}
    return ", ".join(f"{name} {deviation:.2f}" for name, deviation in parts.items())


def _silent(done: int, total: int) -> None:
    pass


def main() -> None:
    """Train, correct, and write the page."""
    datasets = Path(sys.argv[1])
    make_torch_deterministic()
    task = TASKS["train-step"]
    assert isinstance(task, SoloTask)
    errors, precision = solo_errors(
        task, [datasets / name for name in TORCHVISION], "device", _silent
    )
    of_device = spreads(errors, terms.SOLO_LEVELS)
    solo = {}
    for runs in RUNS:
        solo[runs] = correct(errors, of_device, runs_of_each(errors, precision, runs), sign=-1)
        sys.stderr.write(f"{runs} runs: {solo[runs].mape:.1f}\n")
    together = pair_errors([datasets / name for name in GAVEL], _silent)
    of_family = spreads(together.errors, terms.PAIR_LEVELS)
    choices = {f"{runs} co-runs": co_runs_of_each(together, runs) for runs in CO_RUNS}
    choices["itself and ResNet-50"] = with_itself_and(together, [PARTNER])
    pairs = {}
    for name, choose in choices.items():
        pairs[name] = correct(together.errors, of_family, choose, sign=1)
        sys.stderr.write(f"{name}: {pairs[name].mape:.1f}\n")
    deviations = {STEPS: of_device, SLOWDOWNS: of_family}
    write_page(PAGE, page(solo, pairs, deviations))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
