from __future__ import annotations

import pytest

from presage.errors import InvalidJobError, InvalidRequestError
from presage.schedulers.slurm.bridge.submission import Changes, Submission, parse_lines
from presage.schedulers.slurm.feature_store import FeatureStore
from presage.schedulers.slurm.feature_text import MAX_TEXT, to_features, to_message, to_text
from tests.features import examples


def test_lines_are_values_up_to_an_empty_line():
    assert parse_lines(b"presage=1\nfeatures=ab==\n\n") == {"presage": "1", "features": "ab=="}


@pytest.mark.parametrize("request_", [b"", b"presage=1\n", b"presage\n\n", b"a=\xff\n\n"])
def test_other_requests_are_rejected(request_):
    with pytest.raises(InvalidRequestError):
        parse_lines(request_)


def test_a_request_of_another_version_is_rejected():
    with pytest.raises(InvalidRequestError, match="presage slurm files"):
        Submission.parse({"presage": "2"})


def test_a_limit_is_a_number_unlimited_or_uncertain():
    def limit(**values):
        job = Submission.parse({"presage": "1", **values})
        return job.own_minutes, job.has_own_limit

    assert limit(own_limit="60") == (60, True)
    assert limit(own_limit="unlimited") == (None, True)
    assert limit() == (None, False)
    with pytest.raises(InvalidRequestError):
        limit(own_limit="1e9")


@pytest.mark.parametrize(
    ("gpus", "request_"),
    [
        ("", ("", 0)),
        ("gres:gpu", ("", 1)),
        ("gres:gpu:2", ("", 2)),
        ("gres:gpu:a100", ("a100", 1)),
        ("gres:gpu:a100:4", ("a100", 4)),
        ("gres:gpu:1,gres:gpu:1", ("", None)),
        ("gres:shard:2", ("", None)),
        ("tres_per_task:gres:gpu:1", ("", None)),
    ],
)
def test_requested_gpus_have_a_type_and_a_number(gpus, request_):
    assert Submission(own_minutes=1, gpus=gpus).gpu_request() == request_


def test_no_changes_are_a_line_with_the_version():
    assert Changes(reason="out of domain").lines() == b"presage=1\n\n"
    assert Changes(time_limit_minutes=5, note="presage: x").lines() == (
        b"presage=1\ntime_limit=5\nnote=presage: x\n\n"
    )


def test_features_pass_through_a_variable():
    features = examples.features()

    assert to_features(to_message(to_text(features))) == features


@pytest.mark.parametrize("text", ["", "!", "abcd", "A" * (MAX_TEXT + 1), "eJw="])
def test_text_that_is_no_features_is_rejected(text):
    with pytest.raises(InvalidJobError):
        to_features(to_message(text))


def test_features_that_unpack_to_gigabytes_are_rejected():
    import base64
    import zlib

    bomb = base64.b64encode(zlib.compress(bytes(64 << 20), 9)).decode()
    assert len(bomb) < MAX_TEXT

    with pytest.raises(InvalidJobError, match="larger than"):
        to_message(bomb)


def test_stored_features_are_found_by_digest_until_they_are_changed(tmp_path):
    store = FeatureStore(tmp_path)
    digest = store.put(b"message")

    assert store.put(b"message") == digest
    assert store.get(digest) == b"message"
    assert store.get("0" * 64) is None
    (tmp_path / "features" / digest).write_bytes(b"other")
    assert store.get(digest) is None
