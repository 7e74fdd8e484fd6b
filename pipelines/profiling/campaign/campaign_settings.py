"""What a campaign is asked for: by params.yaml, by a campaign file, by flags."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from presage.errors import ProfilingError
from presage.features.device.device import usable_cores
from presage.pipelines.profiling.running.training_step import INFERENCE, OPTIMIZERS
from presage.pipelines.profiling.zoo import FAMILIES, JobConfig, all_configs
from presage.pipelines.profiling.zoo.job_config import USER_MODEL
from presage.pipelines.profiling.zoo.precision import PRECISIONS
from presage.system.text.known_names import did_you_mean

LEAST_BUDGET_S = 15.0  # time of calibration and one job
USUAL = "usual"  # in `optimizers`: the customary optimizer of each family


@dataclass(frozen=True, slots=True)
class CampaignSettings:
    """Settings of a campaign: the keys of ``profile`` in params.yaml and of a campaign file.

    Attributes
    ----------
    campaign : str
        Name of the campaign, stored in every row.
    budget_s : float
        Wall time of this call; a later call on the same folder has its own budget.
    jobs, colocations : int or None
        Number that the campaign measures, including earlier calls; None for as many as the budget
        allows.
    window_s : float
        Minimum time of a solo measurement; that of a co-location is 5/3 of it.
    solo_share : float in [0, 1]
        Fraction of the budget for solo runs, unless both numbers are given.
    families : tuple of str
        Families of the job zoo; empty for all.
    threads : int or None
        Threads of every job; None for the number of cores. On a processor, fewer threads are a
        smaller share of the device.
    sizes : str
        "small" or "large" variants of the zoo; "" to choose by device.
    precisions, optimizers : tuple of str
        Every job is measured with each; "usual" is the family's own optimizer, "inference" none.
    batch_sizes : tuple of int
        Replacement for the families' own batch sizes; empty for those.
    contexts : tuple of int
        Context lengths in tokens of jobs that serve LLMs, which replace the families' own variants;
        empty for those.
    members : mapping of int to float
        Weight of each size of a co-location.
    sharing : tuple of str
        Sharing modes of co-locations, in turns: "time-slice", "mps".
    solo_shares : tuple of float
        Fractions of the device for the solo runs of every job; below 1 with MPS.
    models : tuple of mapping
        The user's own jobs: ``model`` is module:function, ``batch_sizes``, and optionally
        ``optimizer`` and ``precision``.
    anchor : bool
        Measure the fixed jobs and pairs of :mod:`anchors` instead, as far as the budget allows;
        settings that choose jobs and co-locations have no effect.
    """

    campaign: str
    budget_s: float
    jobs: int | None = None
    colocations: int | None = None
    window_s: float = 1.2
    seed: int = 0
    solo_share: float = 0.5
    families: tuple[str, ...] = ()
    threads: int | None = None
    sizes: str = ""
    precisions: tuple[str, ...] = ("fp32",)
    optimizers: tuple[str, ...] = (USUAL,)
    batch_sizes: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()
    members: Mapping[int, float] = field(default_factory=lambda: {2: 0.7, 3: 0.3})
    sharing: tuple[str, ...] = ("time-slice",)
    solo_shares: tuple[float, ...] = (1.0,)
    models: tuple[Mapping[str, Any], ...] = ()
    anchor: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.budget_s):
            raise ProfilingError(f"budget_s={self.budget_s:g}, must be a number of seconds > 0")
        if not 0 <= self.solo_share <= 1:
            raise ProfilingError(
                f"solo_share={self.solo_share}, must be the fraction of the budget for solo runs, "
                "0 to 1"
            )
        if not 0 < self.window_s < math.inf:
            raise ProfilingError(f"window_s={self.window_s}, must be seconds > 0, such as 1.2")
        if self.threads is not None and not 1 <= self.threads <= usable_cores():
            raise ProfilingError(
                f"threads={self.threads}, must be 1 to {usable_cores()}, the cores of this machine"
            )
        weights = self.members.values()
        if (
            any(size < 2 for size in self.members)
            or not all(0 <= weight < math.inf for weight in weights)
            or not sum(weights) > 0
        ):
            raise ProfilingError(
                f"members={dict(self.members)}, must map numbers of members >= 2 to weights that "
                "are not all 0, such as {2: 0.7, 3: 0.3}"
            )
        if any(size < 1 for size in self.batch_sizes):
            raise ProfilingError(f"batch_sizes={list(self.batch_sizes)}, must be integers >= 1")
        _check("family", self.families, FAMILIES)
        self._check_contexts()
        _check("size", (self.sizes,), ("", "small", "large"))
        _check("precision", self.precisions, PRECISIONS)
        _check("optimizer", self.optimizers, (USUAL, INFERENCE, *OPTIMIZERS))
        _check("sharing mode", self.sharing, ("time-slice", "mps"))
        if 1.0 not in self.solo_shares or not all(
            0 < fraction <= 1 for fraction in self.solo_shares
        ):
            raise ProfilingError(
                f"solo_shares={list(self.solo_shares)}, must contain 1.0, the reference of "
                "slowdowns, and otherwise fractions above 0 and below 1"
            )
        self.user_models()
        if self.budget_s < LEAST_BUDGET_S:
            raise ProfilingError(
                f"budget of {self.budget_s:g} s is too small: calibration and one job take "
                f"{LEAST_BUDGET_S:g} s; raise profile.budget_s"
            )

    def configs(self, *, large: bool) -> list[JobConfig]:
        """Return every job that may be measured; ``large`` applies if ``sizes`` is empty."""
        if self.sizes:
            large = self.sizes == "large"
        every = all_configs(large=large, contexts=self.contexts)
        grid = [c for c in every if not self.families or c.family in self.families]
        if self.batch_sizes:
            models = dict.fromkeys((c.family, c.variant, c.optimizer) for c in grid)
            grid = [JobConfig(f, v, b, o) for f, v, o in models for b in self.batch_sizes]
        varied = dict.fromkeys(
            JobConfig(config.family, config.variant, config.batch_size, trained, precision)
            for config in grid
            for trained in self._optimizers_of(config)
            for precision in self.precisions
        )
        return [*varied, *self.user_models()]

    def _check_contexts(self) -> None:
        if any(tokens < 1 for tokens in self.contexts):
            raise ProfilingError(f"contexts={list(self.contexts)}, must be tokens >= 1")
        serving = [name for name, family in FAMILIES.items() if family.context]
        if self.contexts and self.families and not set(serving) & set(self.families):
            raise ProfilingError(
                f"contexts={list(self.contexts)} apply to {' and '.join(serving)} only; "
                "add one of them to families"
            )

    def _optimizers_of(self, config: JobConfig) -> Sequence[str]:
        """Return the optimizers of a job; an inference-only family has a single choice."""
        if config.optimizer == INFERENCE:
            return (INFERENCE,)
        return [config.optimizer if name == USUAL else name for name in self.optimizers]

    def user_models(self) -> list[JobConfig]:
        """Return the jobs in ``models``.

        Raises
        ------
        ProfilingError
            A description has no ``model`` or ``batch_sizes``, an unknown key, or a value that is
            not valid in a job's name.
        """
        jobs = []
        for row in self.models:
            unknown = set(row) - {"model", "batch_sizes", "optimizer", "precision"}
            if unknown or not _is_user_model(row.get("model"), row.get("batch_sizes")):
                raise ProfilingError(
                    f"models: {dict(row)} is not a job; use for example "
                    "{model: module:function, batch_sizes: [8, 16], optimizer: adamw}"
                )
            optimizer, precision = row.get("optimizer", "sgd"), row.get("precision", "fp32")
            _check("optimizer", (optimizer,), (INFERENCE, *OPTIMIZERS))
            _check("precision", (precision,), PRECISIONS)
            jobs += [
                JobConfig(row["model"], "", size, optimizer, precision)
                for size in row["batch_sizes"]
            ]
        return jobs


def _is_user_model(model: object, batch_sizes: object) -> bool:
    """Return whether the arguments are a function that can name a job, and its batch sizes."""
    return (
        isinstance(model, str)
        and USER_MODEL.fullmatch(model) is not None
        and isinstance(batch_sizes, Sequence)
        and len(batch_sizes) > 0
        and all(type(size) is int and size >= 1 for size in batch_sizes)
    )


def _check(what: str, names: Sequence[str], known: Sequence[str] | Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            hint = did_you_mean(str(name), known)
            raise ProfilingError(f"the profiler has no {what} {name!r}; {hint}")
