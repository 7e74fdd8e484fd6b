import pytest

from presage.features.colocation import Colocation
from presage.features.device import Share
from presage.features.errors import InvalidJobError
from presage.features.forecast import Forecast
from presage.features.job import JobFeatures
from tests.features.examples import device, features, job


@pytest.mark.parametrize("field", ["batch_size", "iterations", "input_elements"])
def test_a_job_of_nothing_is_refused(field):
    with pytest.raises(InvalidJobError, match=f"{field}=0, must be >= 1"):
        job(**{field: 0})


@pytest.mark.parametrize("field", ["batch_size", "iterations", "input_elements"])
def test_a_job_beyond_64_bits_is_refused_without_printing_its_digits(field):
    with pytest.raises(InvalidJobError, match=f"{field} has 1329 bits, must be below"):
        job(**{field: 10**400})


@pytest.mark.parametrize(("size", "message"), [(-1, "=-1, must be >= 0"), (2**63, "has 64 bits")])
def test_features_of_an_impossible_size_are_refused(size, message):
    for field in ("parameters", "peak_live_bytes"):
        sizes = {"parameters": 1, "peak_live_bytes": 1} | {field: size}
        with pytest.raises(InvalidJobError, match=f"{field}.*{message}"):
            JobFeatures(job(), features().op_stats, **sizes)


def test_an_unknown_precision_names_the_known_ones():
    with pytest.raises(InvalidJobError, match="bf16"):
        job(precision="fp7")
    with pytest.raises(InvalidJobError, match=r"memory format 'nhwc' .* channels-last"):
        job(memory_format="nhwc")


def test_features_without_operators_say_how_to_get_them():
    with pytest.raises(InvalidJobError, match="presage features"):
        JobFeatures(job(), (), parameters=1, peak_live_bytes=1)


@pytest.mark.parametrize("fraction", [0, -0.1, 1.5])
def test_a_share_is_a_fraction(fraction):
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


def test_a_forecast_is_in_order():
    with pytest.raises(ValueError, match="out of order"):
        Forecast(1.0, 2.0, 3.0, "seconds", in_domain=True, release_id="r")
