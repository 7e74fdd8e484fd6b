"""Log: one JSON object a line for any content."""

from __future__ import annotations

import io
import json
import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.serving.server.log import LOGGER, JsonLines, log, log_as_json
from tests.support.slow_tests import examples

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e300, 1e300) | st.text()
    | st.binary() | st.just(Path("/tmp")) | st.builds(ValueError, st.text()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@pytest.fixture
def written():
    """Function that returns the log lines so far, as parsed JSON."""
    logger = logging.getLogger(LOGGER)
    before = logger.handlers, logger.propagate, logger.level
    stream = io.StringIO()
    log_as_json(stream)
    yield lambda: stream.getvalue().splitlines()
    logger.handlers, logger.propagate = before[:2]
    logger.setLevel(before[2])


def test_a_line_has_time_level_message_and_fields(written):
    begin = datetime.now(UTC)
    log(logging.WARNING, "registry away, serving on", reason="timed out", tries=3)

    (line,) = written()
    row = json.loads(line)
    time = datetime.fromisoformat(row.pop("time"))
    assert abs((time - begin).total_seconds()) < 5
    assert time.utcoffset() is not None
    assert row == {
        "level": "warning", "event": "registry away, serving on", "reason": "timed out",
        "tries": 3,
    }  # fmt: skip


@settings(max_examples=examples(50), deadline=None)
@given(event=st.text(), fields=st.dictionaries(st.from_regex(r"\A[a-z_]{1,8}\Z"), ANYTHING))
def test_any_content_is_one_object_on_one_line(event, fields):
    record = logging.LogRecord(LOGGER, logging.INFO, "", 0, "%s", (event,), None)
    record.fields = fields

    line = JsonLines().format(record)

    assert len(line.splitlines()) == 1
    assert line.isascii()
    row = json.loads(line)
    assert {"time", "level", "event"} <= set(row)
    if "event" not in fields:
        assert row["event"] == event


def test_a_traceback_is_on_the_same_line(written):
    try:
        raise ZeroDivisionError("of\nthe server")
    except ZeroDivisionError:
        log(logging.ERROR, "defect", traceback=True, method="Predict")

    (line,) = written()
    assert json.loads(line)["traceback"].endswith("ZeroDivisionError: of\nthe server")


def test_a_message_with_percent_signs_is_not_formatted(written):
    log(logging.INFO, "100%s sure %d")

    assert json.loads(written()[0])["event"] == "100%s sure %d"


def test_debug_messages_are_not_written(written):
    log(logging.DEBUG, "detail")
    log(logging.INFO, "event")

    assert [json.loads(line)["event"] for line in written()] == ["event"]


def test_a_second_setup_does_not_duplicate_lines(written, caplog):
    stream = io.StringIO()
    log_as_json(stream)
    log(logging.ERROR, "event")

    assert len(stream.getvalue().splitlines()) == 1
    assert written() == []
    assert caplog.records == []


def test_the_log_is_written_to_standard_error(written, capsys):
    log_as_json()
    log(logging.INFO, "event")

    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err)["event"] == "event"
