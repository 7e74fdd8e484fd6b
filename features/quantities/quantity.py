"""Quantity: everything that the other packages need to know of one predicted quantity.

A scale (seconds, bytes) is learned as the logarithm of its ratio to a prior that physics gives:
the roofline for time, the sum of the memory components for memory. The residual is small, has no
unit, and is what carries a predictor to models and devices that were never measured. A fraction
is learned as its log-odds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from presage.features.columns.schema import COMMON, columns
from presage.features.device.device import Device
from presage.system.arrays import FloatMatrix

Vector = np.ndarray[Any, np.dtype[np.float64]]

LEAST_FRACTION = 2e-3  # fractions are clipped to [LEAST_FRACTION, 1 - LEAST_FRACTION]

_NAME = re.compile(r"[a-z][a-z0-9_]*")  # also a file, a model and a section of params.yaml


def _common_inputs() -> tuple[str, ...]:
    return tuple(column.name for column in COMMON)


@dataclass(frozen=True, slots=True)
class Quantity:
    """Predicted quantity: what is measured, how it is learned, bounded, carried and displayed.

    Attributes
    ----------
    name : str
        Name of its predictor: of the ONNX file, the model of the Open Inference Protocol, the DVC
        stage and the section of params.yaml.
    unit : str
        Unit of its forecasts. Units that :mod:`presage.system.text.units` does not know are shown
        after the number.
    title, label : str
        Heading of a section or a plot, and of a column of a table.
    column : str
        Measured column: of ``executions`` for a solo quantity, of ``colocations`` else. Also the
        field of an outcome that reports it.
    forecast_field : str
        Name of its forecast in Python, JSON, protobuf and MLflow, in metrics and drift.
    in_proto : bool
        Whether ``presage.v1`` has fields of these names. Other quantities travel in the maps
        named ``additional``. A release must predict every quantity that has fields.
    scope : {"solo", "co-location"}
        Whether it is measured for a solo job, or for the members of a co-location.
    transform : {"log", "log-odds"}
        Space in which it is learned, calibrated and widened.
    prior : str or None
        Column of the full feature set whose logarithm is subtracted; None learns the scale itself.
    inputs : tuple of str
        Columns that the network reads: of the full feature set, or of ``MEMBER_COLUMNS`` for a
        co-location.
    minimum, maximum : float
        Physical bounds. A model that answers less than the minimum is rejected.
    device_limit : str or None
        Attribute of a device that bounds the quantity, such as ``memory_bytes``.
    negligible : float
        Values of this size count as none when two releases are compared.
    gate_tolerance : mapping of str to float
        By metric, overrides ``promote.tolerance`` of params.yaml for this quantity.
    """

    name: str
    unit: str
    title: str
    label: str
    column: str
    forecast_field: str
    in_proto: bool = False
    scope: Literal["solo", "co-location"] = "solo"
    transform: Literal["log", "log-odds"] = "log"
    prior: str | None = None
    inputs: tuple[str, ...] = field(default_factory=_common_inputs)
    minimum: float = 0.0
    maximum: float = math.inf
    device_limit: str | None = None
    negligible: float = 0.0
    gate_tolerance: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not (_NAME.fullmatch(self.name) and _NAME.fullmatch(self.forecast_field)):
            raise ValueError(
                f"quantity {self.name!r}: name and forecast_field must match {_NAME.pattern}"
            )
        if not 0 <= self.minimum <= self.maximum:
            raise ValueError(f"quantity {self.name!r}: bounds must be 0 <= minimum <= maximum")
        if not self.is_scale and self.maximum != 1:
            raise ValueError(f"quantity {self.name!r}: log-odds need a maximum of 1")

    @property
    def is_optional(self) -> bool:
        """Whether a release may lack it: the protocol has no fields that must be filled."""
        return not self.in_proto

    @property
    def is_scale(self) -> bool:
        """Whether it is learned as a logarithm, and forecasts are off by factors."""
        return self.transform == "log"

    def limit(self, device: Device) -> float:
        """Return the most that a job can reach on a device; inf where nothing bounds it."""
        if self.device_limit is None:
            return self.maximum
        return float(getattr(device, self.device_limit))

    def to_learnt(self, values: Vector, features: FloatMatrix) -> Vector:
        """Transform measured values of shape (rows,) into what the network is fitted to."""
        if not self.is_scale:
            inside = np.clip(values, LEAST_FRACTION, 1 - LEAST_FRACTION)
            return np.log(inside / (1 - inside))
        return np.log(values) - self._log_prior(features)

    def to_measured(self, learnt: Vector, features: FloatMatrix) -> Vector:
        """Transform network outputs of shape (rows, levels) into the quantity's unit.

        Outputs beyond the range of an exponential become 0, 1 or infinity, as a network of few rows
        may have them.
        """
        with np.errstate(over="ignore"):
            if not self.is_scale:
                return 1 / (1 + np.exp(-learnt))
            measured: Vector = np.exp(learnt + self._log_prior(features)[:, None])
            return measured

    def _log_prior(self, features: FloatMatrix) -> Vector:
        if self.prior is None:
            return np.zeros(len(features))
        return np.log(features[:, columns("full").index(self.prior)])
