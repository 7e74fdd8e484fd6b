from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.slurm.job_note import JobNote

NOTE = JobNote(
    own_minutes=600,
    set_minutes=42,
    predicted_s=2500,
    quantile=0.9,
    risk=0.1,
    release_id="f8126d1dcca7",
    device="a100-80gb",
    share=0.3,
    features="a" * 64,
)


def test_a_note_is_read_as_it_was_written():
    assert JobNote.parse(NOTE.text()) == NOTE
    assert JobNote.parse(f"another plugin's text {NOTE.text()}") == NOTE
    unlimited = JobNote(own_minutes=None)
    assert JobNote.parse(unlimited.text()) == unlimited


def test_a_note_tells_an_administrator_what_was_predicted():
    assert NOTE.text().startswith(
        "presage: limit=600 set=42 predicted=2500 quantile=0.9 risk=0.1 release=f8126d1dcca7 "
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "presage:",
        "presage: limit=0 quantile=0.9 risk=0.1 share=1",
        "presage: limit=-5 quantile=0.9 risk=0.1 share=1",
        "presage: limit=nan quantile=0.9 risk=0.1 share=1",
        "presage: limit=99999999999 quantile=0.9 risk=0.1 share=1",
        "presage: limit=60 quantile=0.9 risk=0.1 share=7",
        "presage: limit=60 quantile=0.9 risk=0.1 share=1 features=../../etc/passwd",
        "presage: limit=60 quantile=0.9 risk=0.1 share=1 device=a/../b",
        "presage: limit=60 and so on",
    ],
)
def test_an_invalid_note_is_none(text):
    assert JobNote.parse(text) is None


@given(st.text())
def test_any_comment_is_read_without_an_error(text):
    JobNote.parse(text)
    JobNote.parse(f"presage: {text}")
    JobNote.parse(f"{NOTE.text()} {text}")
