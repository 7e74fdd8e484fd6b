"""How a predictor's networks are fitted: by how many rows there are, and what they go on from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Generic, TypeVar

from presage.models.fit import FineTuning, FitConfig
from presage.pipelines.stage import read_params, read_section

Config = TypeVar("Config", bound=FitConfig)


@dataclass(frozen=True)
class Settings(Generic[Config]):
    """The section ``train`` of params.yaml, for one kind of network."""

    hundreds: Config
    thousands: Config
    least_of_thousands: int
    fine_tuning: FineTuning

    def of(self, rows: int, *, goes_on: bool) -> Config:
        """Those for so many rows, or to go on from networks that are there."""
        config = self.thousands if rows >= self.least_of_thousands else self.hundreds
        return replace(config, **asdict(self.fine_tuning)) if goes_on else config


def read_settings(name: str, into: type[Config]) -> Settings[Config]:
    """Of ``solo`` or ``interference``.

    Raises
    ------
    ConfigError
        A section or a key is missing, unknown, or of no use.
    """
    return Settings(
        read_params(f"train.{name}", into),
        read_params(f"train.thousands.{name}", into),
        int(read_section("train.thousands")["rows"]),
        read_params("train.fine_tuning", FineTuning),
    )
