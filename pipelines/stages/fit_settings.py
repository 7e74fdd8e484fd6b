"""Hyperparameters of a predictor, by the number of rows and whether it is fine-tuned."""

from __future__ import annotations

from dataclasses import dataclass, replace

from presage.errors import ConfigError
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.training.fit import FitConfig
from presage.pipelines.stages.stage import PARAMS, read_params


@dataclass(frozen=True, slots=True)
class FineTuning:
    """Hyperparameters to fine-tune networks on hundreds of rows.

    Thousands of rows use the hyperparameters of training from scratch, with ``pull`` and without
    jitter. Trees only know the rows of this table, so fine-tuned networks are used without.

    Attributes
    ----------
    steps : int
        Least number of steps; one per row if there are more rows.
    learning_rate : float
    pull : float
        Weight decay towards the initial parameters, times the number of rows.
    batch : int
        Rows per step.
    """

    steps: int
    learning_rate: float
    pull: float
    batch: int


@dataclass(frozen=True, slots=True)
class LargeTableSettings:
    """Number of rows from which a network is larger and is trained for longer."""

    rows: int


@dataclass(frozen=True)
class Settings:
    """Section ``train`` of params.yaml for one predictor.

    Attributes
    ----------
    small_tables, large_tables : FitConfig
        Hyperparameters below and from ``large_table_rows`` rows.
    large_table_rows : int
    fine_tuning : FineTuning
    """

    small_tables: FitConfig
    large_tables: FitConfig
    large_table_rows: int
    fine_tuning: FineTuning

    def select(self, rows: int, *, is_fine_tuning: bool) -> FitConfig:
        """Return the hyperparameters for this number of rows."""
        is_large = rows >= self.large_table_rows
        config = self.large_tables if is_large else self.small_tables
        if not is_fine_tuning:
            return config
        fine = self.fine_tuning
        config = replace(config, weight_decay=fine.pull / rows, jitter=0.0, trees=0.0)
        if is_large:
            return config
        return replace(
            config, learning_rate=fine.learning_rate, batch=fine.batch, steps=max(fine.steps, rows)
        )


def read_settings(predictor: str) -> Settings:
    """Read the settings of a predictor.

    Raises
    ------
    ConfigError
        A section or a key is missing, unknown or invalid.
    """
    settings = Settings(
        read_params(f"train.{predictor}", FitConfig),
        read_params(f"train.thousands.{predictor}", FitConfig),
        read_params("train.thousands", LargeTableSettings, besides=QUANTITIES).rows,
        read_params("train.fine_tuning", FineTuning),
    )
    configs = (settings.small_tables, settings.large_tables)
    if QUANTITIES[predictor].scope == "co-location" and any(one.trees for one in configs):
        raise ConfigError(
            f"{PARAMS}: train.{predictor}.trees: only solo predictors have trees; remove the key"
        )
    return settings
