"""Metadata and readiness of the server and its models."""

import pytest

import presage
from presage.errors import UnknownModelError
from presage.features.colocation_member import MEMBER_COLUMNS
from presage.features.columns.schema import schema_hash
from presage.features.quantities.quantity_registry import required_quantities
from presage.serving.oip.messages import message
from presage.serving.oip.metadata import model_metadata, model_ready, server_metadata
from tests.serving.oip.requests import COLUMNS

SECRET = "s3cret"


def metadata(served, name, version=""):
    return model_metadata(message("ModelMetadataRequest")(name=name, version=version), served)


def ready(served, name, version=""):
    return model_ready(message("ModelReadyRequest")(name=name, version=version), served).ready


def tensors(found):
    return {tensor.name: (tensor.datatype, list(tensor.shape)) for tensor in found}


def test_server_metadata_has_name_and_version():
    found = server_metadata()

    assert (found.name, found.version) == ("presage", presage.__version__)
    assert list(found.extensions) == []


@pytest.mark.parametrize("name", ["compute_utilization", "memory", "step_time"])
def test_a_model_of_rows_takes_features(served, release, name):
    found = metadata(served, name)

    assert (found.name, found.platform) == (name, "onnxruntime_onnx")
    assert list(found.versions) == [release.release_id]
    assert tensors(found.inputs) == {"features": ("FP32", [-1, len(COLUMNS)])}
    assert tensors(found.outputs) == {"quantiles": ("FP32", [-1, 5])}


def test_interference_takes_members_and_a_mask(served):
    found = metadata(served, "interference")

    assert tensors(found.inputs) == {
        "members": ("FP32", [-1, -1, len(MEMBER_COLUMNS)]),
        "mask": ("FP32", [-1, -1]),
    }
    assert tensors(found.outputs) == {"quantiles": ("FP32", [-1, -1, 5])}


@pytest.mark.parametrize(
    ("name", "unit"), [(q.name, q.unit) for q in required_quantities().values()]
)
def test_parameters_describe_units_and_columns(served, name, unit):
    found = {key: value.string_param for key, value in metadata(served, name).parameters.items()}

    columns = MEMBER_COLUMNS if name == "interference" else COLUMNS
    assert found == {
        "unit": unit,
        "levels": "0.05,0.1,0.5,0.9,0.95",
        "columns": ",".join(columns),
        "schema_hash": schema_hash(),
    }


def test_no_column_has_a_comma_in_its_name():
    assert not any("," in name for name in (*COLUMNS, *MEMBER_COLUMNS))


@pytest.mark.parametrize("name", required_quantities())
def test_a_served_model_is_ready_under_its_version_too(served, release, name):
    assert ready(served, name)
    assert ready(served, name, release.release_id)
    assert metadata(served, name, release.release_id) == metadata(served, name)


@pytest.mark.parametrize(("name", "version"), [(SECRET, ""), ("", ""), ("memory", SECRET)])
def test_other_models_are_not_ready_and_have_no_metadata(served, name, version):
    assert not ready(served, name, version)
    with pytest.raises(UnknownModelError) as caught:
        metadata(served, name, version)
    assert SECRET not in str(caught.value)
