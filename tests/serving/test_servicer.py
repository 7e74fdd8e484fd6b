import grpc
import pytest

from presage.features.errors import PresageError
from presage.serving.servicer import STATUS


def all_subclasses(cls):
    return {cls} | {deep for direct in cls.__subclasses__() for deep in all_subclasses(direct)}


def test_every_error_of_ours_has_a_status():
    assert set(STATUS) == all_subclasses(PresageError) - {PresageError}


@pytest.mark.parametrize("status", sorted(set(STATUS.values()), key=str))
def test_no_error_of_ours_looks_like_success_or_like_an_accident(status):
    assert status not in (grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN)
