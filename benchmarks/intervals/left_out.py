"""Rows of a table, with quantiles by networks that were not trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from presage.models.training.torch_settings import make_torch_deterministic
from presage.pipelines.benchmark.benchmark_splits import split_folds
from presage.pipelines.benchmark.colocated import Colocated
from presage.pipelines.benchmark.files import read_tables
from presage.pipelines.benchmark.interference import InterferenceTask
from presage.pipelines.benchmark.novel_rows import DomainRows, of_colocated, of_solo
from presage.pipelines.benchmark.solo import SoloTask
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.system.arrays import Array, Mask

SEED = 0


@dataclass(frozen=True)
class Table:
    """A table whose intervals are examined.

    Attributes
    ----------
    title : str
    task : SoloTask or InterferenceTask
    files : tuple of str
        Files relative to the folder of datasets, or folders of the repository.
    splits : tuple of str
        Columns whose values are left out in turn.
    is_public : bool
        Whether the files are in the folder of datasets.
    """

    title: str
    task: SoloTask | InterferenceTask
    files: tuple[str, ...]
    splits: tuple[str, ...]
    is_public: bool = True

    def read(self, datasets: Path) -> LeftOut:
        """Read the table; the networks of a split are trained when they are needed."""
        make_torch_deterministic()
        folder = datasets if self.is_public else Path()
        campaigns = read_tables([folder / name for name in self.files], GraphCache())
        if isinstance(self.task, InterferenceTask):
            members = self.task.rows(campaigns)
            return LeftOut(self.task, members, _lines_of(members))
        rows = self.task.rows(campaigns)
        rows = rows.take(np.isfinite(rows.measured))
        every = np.arange(len(rows)), np.ones(len(rows), dtype=bool)
        return LeftOut(self.task, rows, Lines(rows.metadata, of_solo(rows), *every))


@dataclass(frozen=True)
class Lines:
    """Jobs that the training domain is fitted on: of co-locations, all members.

    Attributes
    ----------
    metadata : DataFrame
    jobs : DomainRows
    together : ndarray of int, shape (lines,)
        Co-location of each line.
    is_row : ndarray of bool, shape (lines,)
        Lines with a measurement.
    """

    metadata: pd.DataFrame
    jobs: DomainRows
    together: np.ndarray
    is_row: Mask

    def near(self, left_out: Mask) -> Mask:
        """Return the rows whose jobs are all near the domain of the lines that stay, (rows,)."""
        near = self.jobs.near(self.jobs.take(~left_out))
        return pd.Series(near).groupby(self.together).transform("all").to_numpy(bool)[self.is_row]


def _lines_of(rows: Colocated) -> Lines:
    together = rows.members["colocation"].to_numpy()
    return Lines(rows.members, of_colocated(rows), together, rows.is_victim)


@dataclass
class LeftOut:
    """Rows of a table; quantiles are in the space of training, and not calibrated."""

    task: SoloTask | InterferenceTask
    rows: Any  # of the task
    lines: Lines
    _quantiles: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    _near: dict[str, Mask] = field(default_factory=dict)

    @property
    def known(self) -> str:
        """Split for rows in which nothing but the job, or the pair of jobs, is new."""
        return "pair" if isinstance(self.task, InterferenceTask) else "job"

    @cached_property
    def metadata(self) -> pd.DataFrame:
        """Metadata of the rows."""
        return self.lines.metadata[self.lines.is_row].reset_index(drop=True)

    @property
    def y(self) -> Array:
        """Targets, shape (rows,)."""
        return self._of(self.known)[0]

    def quantiles(self, split: str) -> Array:
        """Return quantiles (rows, levels) by networks not trained on the fold of a row."""
        return self._of(split)[1]

    def near(self, split: str) -> Mask:
        """Return which rows are near the training domain of the other folds.

        A pair is left out without its jobs, so all rows are.
        """
        if split not in self._near:
            folds = split_folds(self.lines.metadata, split, seed=SEED)
            out = np.full(len(self.metadata), split == "pair")
            for fold in np.unique(folds) if split != "pair" else ():
                own = folds == fold
                out |= self.lines.near(own) & own[self.lines.is_row]
            self._near[split] = out
        return self._near[split]

    def _of(self, split: str) -> tuple[Array, Array]:
        if split not in self._quantiles:
            self._quantiles[split] = self.task.left_out_quantiles(
                self.rows, split, seed=SEED, progress=_silent
            )
        return self._quantiles[split]


def _silent(done: int, total: int) -> None:
    pass


def several(values: Sequence[str], least: int) -> bool:
    """Return whether there are at least that many different values."""
    return len(set(values)) >= least
