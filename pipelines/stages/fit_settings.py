"""How a predictor's networks are fitted: by how many rows there are, and what they go on from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from presage.features.quantities.registry import QUANTITIES
from presage.models.training.fit import FitConfig
from presage.pipelines.stages.stage import read_params


@dataclass(frozen=True, slots=True)
class FineTuning:
    """How networks that other rows have taught are taught further by hundreds of rows.

    Thousands teach as they would from nothing, but for the pull and without jitter.

    Attributes
    ----------
    steps : int
        At least; one for each row where there are more rows.
    pull : float
        Weight decay towards where they began, times rows: many rows outweigh it.
    """

    steps: int
    learning_rate: float
    pull: float
    batch: int


@dataclass(frozen=True, slots=True)
class LargeTableSettings:
    """From how many rows on a network is larger, and learns for longer."""

    rows: int


@dataclass(frozen=True)
class Settings:
    """The section ``train`` of params.yaml, for one predictor."""

    small_tables: FitConfig
    large_tables: FitConfig
    large_table_rows: int
    fine_tuning: FineTuning

    def of(self, rows: int, *, is_fine_tuning: bool) -> FitConfig:
        """Those for so many rows, or to go on from networks that are there."""
        many = rows >= self.large_table_rows
        config = self.large_tables if many else self.small_tables
        if not is_fine_tuning:
            return config
        fine = self.fine_tuning
        config = replace(config, weight_decay=fine.pull / rows, jitter=0.0)
        if many:
            return config
        return replace(
            config, learning_rate=fine.learning_rate, batch=fine.batch, steps=max(fine.steps, rows)
        )


def read_settings(predictor: str) -> Settings:
    """Of the predictor that one stage of dvc.yaml trains.

    Raises
    ------
    ConfigError
        A section or a key is missing, unknown, or of no use.
    """
    return Settings(
        read_params(f"train.{predictor}", FitConfig),
        read_params(f"train.thousands.{predictor}", FitConfig),
        read_params("train.thousands", LargeTableSettings, besides=QUANTITIES).rows,
        read_params("train.fine_tuning", FineTuning),
    )
