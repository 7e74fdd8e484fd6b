"""Temperature and power of GPUs: what is read, what counts as a change, and hostile values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.health.device_reading import (
    DeviceReading,
    has_moved,
    read_devices,
    reported,
)
from presage.schedulers.live.agent.connection.significant_state import (
    have_readings_moved,
    significant_report,
)
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.health.test_health import FakeNvml


def test_gpus_report_what_their_driver_supports():
    assert read_devices(FakeNvml()) == {
        "GPU-a": DeviceReading(61.0, 412.5),
        "GPU-b": DeviceReading(35.0, None),
    }


@pytest.mark.parametrize(
    ("before", "now", "moved"),
    [
        ((60.0, 300.0), (61.9, 300.0), False),
        ((60.0, 300.0), (62.0, 300.0), True),
        ((60.0, 300.0), (58.0, 300.0), True),
        ((60.0, 300.0), (60.0, 329.0), False),
        ((60.0, 300.0), (60.0, 330.0), True),
        ((60.0, 20.0), (60.0, 24.0), False),  # 20 %, but 4 W
        ((60.0, 20.0), (60.0, 25.0), True),
        ((None, None), (None, None), False),
        ((None, None), (30.0, None), True),
        ((30.0, 90.0), (30.0, None), True),
    ],
)
def test_small_changes_are_no_reason_for_a_report(before, now, moved):
    assert has_moved(DeviceReading(*before), DeviceReading(*now)) is moved


@given(st.floats(), st.floats())
def test_values_that_no_gpu_has_are_unknown(temperature_c, power_w):
    found = reported(pb.Device(temperature_c=temperature_c, power_w=power_w))

    for value in found:
        assert value is None or (math.isfinite(value) and 0 <= value <= 1e6)
    assert reported(pb.DeviceStatus()) == DeviceReading()


def test_readings_are_no_part_of_the_state_that_is_reported_at_once():
    cold, hot = (
        pb.NodeReport(devices=[pb.Device(kind="h100", id="GPU-a", temperature_c=c, power_w=90.0)])
        for c in (30.0, 80.0)
    )
    assert significant_report(cold) == significant_report(hot)
    assert cold.devices[0].temperature_c == 30.0
    assert have_readings_moved(cold.devices, hot.devices)
    assert not have_readings_moved(cold.devices, cold.devices)
    assert have_readings_moved((), cold.devices)
