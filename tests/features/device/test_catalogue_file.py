"""Device kinds added by a user: found by any name; errors name line and field."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import ConfigError
from presage.features.device.catalogue_file import read_device_file
from presage.features.device.device import (
    CATALOGUE_FILE,
    DEVICES_VARIABLE,
    catalogue,
    clear_device_cache,
    device_aliases,
    device_kind,
    find_device,
    load_device_file,
)

GOOD = """\
mi300x:
  compute_capability: 9.4
  memory_bytes: 206_158_430_208
  cores: 19456
  peak_flops_per_s: {fp32: 1.634e14, fp16: 1.3074e15}
  memory_bandwidth_bytes_per_s: 5.3e12
  names: [AMD Instinct MI300X, mi-300x-oam]
"""


@pytest.fixture
def write(tmp_path):
    def written(text):
        path = tmp_path / "devices.yaml"
        path.write_text(text)
        return path

    return written


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setenv(DEVICES_VARIABLE, "")
    yield
    monkeypatch.undo()
    clear_device_cache()


def test_an_added_kind_is_found_by_any_of_its_names(write):
    load_device_file(write(GOOD))

    found = find_device("AMD Instinct MI300X")
    assert (found.kind, found.memory_bytes, found.cores) == ("mi300x", 192 * 2**30, 19456)
    assert found.flops_per_s("fp16") == 1.3074e15
    assert (found.op_overhead_s, found.context_bytes) == (1e-5, 2**29)
    assert device_kind("MI300X-192GB") == "mi300x"
    assert device_aliases("mi300x") == ("AMD Instinct MI300X", "mi-300x-oam")
    assert "v100" in catalogue()


def test_the_environment_variable_applies_without_the_option(write, monkeypatch):
    monkeypatch.setenv(DEVICES_VARIABLE, str(write(GOOD)))
    clear_device_cache()

    assert find_device("mi300x").cores == 19456


def test_the_shipped_catalogue_has_this_form():
    assert {k: s["memory_bytes"] for k, (s, _) in read_device_file(CATALOGUE_FILE).items()} == {
        kind: device.memory_bytes for kind, device in catalogue().items()
    }


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("19456", "many", ":4: mi300x.cores: 'many' is not a whole number above 0"),
        ("19456", "0", ":4: mi300x.cores: '0' is not"),
        ("19456", "1.5", ":4: mi300x.cores: '1.5' is not"),
        ("19456", "[1]", ":4: mi300x.cores: '' is not"),
        ("5.3e12", "-1", ":6: mi300x.memory_bandwidth_bytes_per_s: '-1' is not a number above 0"),
        ("5.3e12", ".inf", ":6: mi300x.memory_bandwidth_bytes_per_s"),
        ("cores", "corse", ":4: mi300x.corse is not a field; did you mean 'cores'"),
        ("  cores: 19456\n", "", ":2: mi300x.cores is missing"),
        ("fp32: 1.634e14, ", "", ":5: mi300x.peak_flops_per_s.fp32 is missing"),
        ("fp16", "fp4", ":5: mi300x.peak_flops_per_s.fp4 is no precision"),
        ("fp16: 1.3074e15", "fp16: x", ":5: mi300x.peak_flops_per_s.fp16: 'x' is not a number"),
        ("[AMD Instinct MI300X, mi-300x-oam]", "{}", ":7: mi300x.names: must be a list"),
        ("AMD Instinct MI300X", '"a\\x1b[2J"', ":7: mi300x.names: must be a list"),
        ("AMD Instinct MI300X", "Tesla V100", ":2: 'mi300x' is already a name of 'v100'"),
        ("mi300x:", "v100:", ":2: 'v100' is already a name of 'v100'"),
        ("mi300x:", "MI 300:", ":2: kind 'MI 300' is not valid; use at most 64 lower-case letters"),
        ("mi300x:", "mi300x: 3\nother:", ":1: mi300x must be a mapping"),
        ("  cores", "  cores: 1\n  cores", ":2: mi300x: cores occurs twice"),
        (GOOD, "", ": empty;"),
        (GOOD, "[1, 2]", ":1: the file must be a mapping"),
        (GOOD, "a: {b: [", ": not YAML"),
        (GOOD, "? {a: b}\n: c", ": the file has a key that is not a name"),
        (GOOD, "\x00", ": not YAML"),
    ],
)
def test_errors_name_file_line_and_field(write, old, new, said):
    path = write(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load_device_file(path)

    assert said.removeprefix(":1") in str(caught.value).replace(":1: the", ": the", 1)
    assert str(caught.value).startswith(f"{path}:")
    assert "\n" not in str(caught.value)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["v1", "cores", "names", "peak_flops_per_s"]), inner)
        ),
        max_leaves=12,
    )
)
def test_any_yaml_is_read_or_rejected_in_one_line(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "devices.yaml"
    path.write_text(yaml.safe_dump(content))
    try:
        read_device_file(path)
    except ConfigError as error:
        assert "\n" not in str(error)
