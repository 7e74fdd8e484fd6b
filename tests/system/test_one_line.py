"""Messages are one line of bounded length; long paths keep the names of their files."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from presage.errors import one_line


def test_a_path_of_usual_length_is_unchanged():
    path = "/tmp/pytest-of-operator/pytest-0/popen-gw1/test_while_one_agent_cannot_1/up/n1/agent.id"
    assert one_line(f"{path}:\n  is damaged") == f"{path}: is damaged"


def test_a_long_path_keeps_its_root_and_the_name_of_its_file():
    line = one_line(f"cannot read /data/{'folder/' * 100}agent.id")
    assert line.startswith("cannot read /data/folder/")
    assert line.endswith("/agent.id")
    assert len(line) < 250


@given(st.text(max_size=3000))
def test_any_text_becomes_one_bounded_line(text):
    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert len(line) <= 805
