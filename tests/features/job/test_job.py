from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import InvalidJobError
from presage.features.colocation import Colocation
from presage.features.device.device import Share
from presage.features.forecast import Forecast
from presage.features.job.job_description import JobFeatures, memory_from_peak, public_version
from tests.features.examples import device, features, job, memory


@pytest.mark.parametrize("field", ["batch_size", "iterations", "input_elements"])
def test_a_job_with_zero_sizes_is_rejected(field):
    with pytest.raises(InvalidJobError, match=f"{field}=0, must be >= 1"):
        job(**{field: 0})


@pytest.mark.parametrize("field", ["batch_size", "iterations", "input_elements"])
def test_a_job_beyond_64_bits_is_refused_without_printing_its_digits(field):
    with pytest.raises(InvalidJobError, match=f"{field} has 1329 bits, must be below"):
        job(**{field: 10**400})


@pytest.mark.parametrize(("size", "message"), [(-1, "=-1, must be >= 0"), (2**63, "has 64 bits")])
def test_features_of_an_impossible_size_are_refused(size, message):
    with pytest.raises(InvalidJobError, match=f"parameters.*{message}"):
        replace(features(), parameters=size)


HELD = (
    "parameter_bytes", "gradient_bytes", "optimizer_state_bytes", "activation_bytes",
    "workspace_bytes", "batch_bytes",
)  # fmt: skip


@pytest.mark.parametrize("field", HELD)
def test_the_error_of_memory_beyond_64_bits_names_the_component(field):
    said = f"job 'a job': memory.{field} has 64 bits, .*real {field.replace('_', ' ')}"
    with pytest.raises(InvalidJobError, match=said):
        replace(features(), memory=memory(**{field: 2**63}))


def test_the_sum_of_components_must_fit_into_64_bits():
    with pytest.raises(InvalidJobError, match="peak_live_bytes has 64 bits"):
        replace(features(), memory=memory(parameter_bytes=2**62, batch_bytes=2**62))


def test_the_peak_is_computed_from_the_memory_components():
    assert features().peak_live_bytes == memory().peak_bytes == 1 << 20


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_weights_and_workspace_are_derived_from_a_peak(parameters, peak):
    held = memory_from_peak(parameters, peak)

    assert held.parameter_bytes == min(4 * parameters, peak)
    assert held.peak_bytes == held.parameter_bytes + held.workspace_bytes == peak


@pytest.mark.parametrize(("sizes", "said"), [((-1, 5), "parameters=-1"), ((5, -1), "peak_live_by")])
def test_a_negative_peak_is_rejected(sizes, said):
    with pytest.raises(InvalidJobError, match=said):
        memory_from_peak(*sizes)


@pytest.mark.parametrize("version", ["", "2.13.0", "1.12", "2.13.0a0+git12", "0.4.1.post2"])
def test_a_framework_has_a_version_or_none(version):
    assert job(framework_version=version).framework_version == version


@pytest.mark.parametrize("version", ["2", "v2.13", "main", " 2.13", "2.x", ".13", "٢.٣"])
def test_a_version_must_begin_with_two_numbers(version):
    with pytest.raises(InvalidJobError, match=r"'a job': framework_version='.*as in 2\.13\.0"):
        job(framework_version=version)
    assert public_version(version) == ""


@pytest.mark.parametrize(
    ("version", "known"),
    [("2.13.0+cpu", "2.13.0"), ("1.12", "1.12"), ("", ""), ("2.1rc1", "2.1rc1")],
)
def test_a_version_is_compared_without_its_local_part(version, known):
    assert public_version(version) == known


def test_the_error_of_an_unknown_precision_lists_the_known_ones():
    with pytest.raises(InvalidJobError, match="bf16"):
        job(precision="fp7")
    with pytest.raises(InvalidJobError, match=r"memory format 'nhwc' .* channels-last"):
        job(memory_format="nhwc")


def test_the_error_of_features_without_operators_says_how_to_get_them():
    with pytest.raises(InvalidJobError, match="presage features"):
        JobFeatures(job(), (), parameters=1, memory=memory())


@pytest.mark.parametrize("fraction", [0, -0.1, 1.5])
def test_a_share_must_be_a_fraction(fraction):
    with pytest.raises(InvalidJobError, match="above 0 and at most 1"):
        Share(fraction)


def test_an_unknown_sharing_mode_is_refused():
    with pytest.raises(InvalidJobError, match="time-slice"):
        Share(1.0, "vgpu")


def test_a_colocation_needs_a_member_and_a_share_for_each():
    with pytest.raises(InvalidJobError, match="no job"):
        Colocation(device(), (), ())
    with pytest.raises(InvalidJobError, match="1 jobs but 0 shares"):
        Colocation(device(), (features(),), ())


def test_the_bounds_of_a_forecast_must_be_in_order():
    with pytest.raises(ValueError, match="out of order"):
        Forecast(1.0, 2.0, 3.0, "seconds", in_domain=True, release_id="r")
