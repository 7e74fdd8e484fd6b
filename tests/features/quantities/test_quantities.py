"""Registry of quantities: its rules, and the agreement of protocol, tables and values."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest

from presage.features.colocation_member import SOLO_PROFILE
from presage.features.columns.schema import columns
from presage.features.device.device import catalogue
from presage.features.quantities.quantity import Quantity
from presage.features.quantities.quantity_registry import (
    COMPUTE_UTILIZATION,
    INTERFERENCE,
    MEMORY,
    QUANTITIES,
    RUNTIME,
    STEP_TIME,
    job_quantities,
    register,
    solo_quantities,
)
from presage.features.tables import schemas as tables
from presage.serving.outcomes.outcome import Outcome
from presage.serving.predictor.prediction_backend import JobForecast
from presage.serving.v1 import prediction_pb2 as pb

NEW = Quantity(
    name="energy",
    unit="joules",
    title="Energy",
    label="energy",
    column="energy_j",
    forecast_field="energy_j",
)


def test_members_of_colocations_are_described_by_solo_quantities():
    assert set(SOLO_PROFILE) <= solo_quantities().keys()


@pytest.mark.parametrize("quantity", [*QUANTITIES.values(), RUNTIME], ids=lambda one: one.name)
def test_the_protocol_and_the_values_have_the_fields_of_a_quantity(quantity):
    if quantity.scope == "co-location":
        assert "slowdowns" in pb.ColocationForecast.DESCRIPTOR.fields_by_name
        return
    for message in (pb.JobForecast, pb.PredictMatrixResponse):
        assert (quantity.forecast_field in message.DESCRIPTOR.fields_by_name) == quantity.in_proto
    assert (quantity.column in pb.Outcome.DESCRIPTOR.fields_by_name) == quantity.in_proto
    assert (quantity.forecast_field in {f.name for f in fields(JobForecast)}) == quantity.in_proto
    assert (quantity.column in {f.name for f in fields(Outcome)}) == quantity.in_proto


def test_fields_of_the_protocol_come_first_in_order():
    in_proto = [name for name, one in job_quantities().items() if one.in_proto]
    numbers = [pb.JobForecast.DESCRIPTOR.fields_by_name[name].number for name in in_proto]

    assert numbers == list(range(1, 1 + len(numbers)))
    assert list(job_quantities())[: len(in_proto)] == in_proto


@pytest.mark.parametrize("quantity", solo_quantities().values(), ids=lambda one: one.name)
def test_a_solo_quantity_is_a_column_of_executions(quantity):
    assert quantity.column in tables.EXECUTIONS.schema.names


def test_the_slowdown_is_a_column_of_colocations():
    assert INTERFERENCE.column in tables.COLOCATIONS.schema.names


@pytest.mark.parametrize("quantity", [COMPUTE_UTILIZATION, MEMORY, STEP_TIME, NEW])
def test_the_inverse_transform_recovers_the_measured_value(quantity):
    features = np.random.default_rng(0).uniform(1, 100, (5, len(columns("full"))))
    values = np.array([0.1, 0.3, 0.5, 0.7, 0.9])

    learnt = quantity.to_learnt(values, features)

    np.testing.assert_allclose(quantity.to_measured(learnt[:, None], features)[:, 0], values)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("quantity", "largest"), [(COMPUTE_UTILIZATION, 1), (NEW, np.inf)])
def test_outputs_beyond_the_range_of_an_exponential_are_the_bounds(quantity, largest):
    features = np.ones((2, len(columns("full"))))
    learnt = np.array([[-1e4], [1e4]])

    assert quantity.to_measured(learnt, features)[:, 0].tolist() == [0, largest]


def test_the_maximum_of_a_quantity_on_a_device():
    device = catalogue()["h200"]

    assert COMPUTE_UTILIZATION.limit(device) == 1
    assert MEMORY.limit(device) == device.memory_bytes
    assert STEP_TIME.limit(device) == np.inf


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"name": "memory"}, "'memory' has the same name"),
        ({"forecast_field": "runtime_s"}, "'runtime' has the same forecast_field"),
        ({"column": "slowdown"}, "'interference' has the same column"),
        ({"inputs": ("flop",)}, "no column 'flop' to read"),
        ({"prior": "roofline"}, "no column 'roofline' to read"),
        ({"scope": "co-location", "inputs": ()}, "co-locations have one quantity only"),
    ],
)
def test_a_conflicting_quantity_is_not_registered(changes, match):
    before = dict(QUANTITIES)

    with pytest.raises(ValueError, match=match):
        register(replace(NEW, **changes))

    assert before == QUANTITIES


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"name": "../energy"}, "name and forecast_field must match"),
        ({"forecast_field": "energy J"}, "name and forecast_field must match"),
        ({"minimum": 2.0, "maximum": 1.0}, "minimum <= maximum"),
        ({"minimum": float("nan")}, "minimum <= maximum"),
        ({"transform": "log-odds"}, "log-odds need a maximum of 1"),
    ],
)
def test_an_invalid_quantity_is_rejected(changes, match):
    with pytest.raises(ValueError, match=match):
        replace(NEW, **changes)


def test_the_registry_needs_neither_torch_nor_pandas():
    heavy = "{'torch', 'pandas', 'pyarrow', 'mlflow', 'onnxruntime'}"
    module = "presage.features.quantities.quantity_registry"
    code = f"import sys, {module}; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
