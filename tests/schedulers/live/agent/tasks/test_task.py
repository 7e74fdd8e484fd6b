"""Task specs, states and leases, and their files."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import InvalidJobError
from presage.schedulers.live.agent.connection.lease import (
    boot_id,
    boottime_s,
    read_lease,
    write_lease,
)
from presage.schedulers.live.agent.tasks.file_names import safe_name, task_name
from presage.schedulers.live.agent.tasks.json_file import read_json, write_json
from presage.schedulers.live.agent.tasks.task import (
    DesiredState,
    End,
    ShimState,
    TaskExit,
    TaskSpec,
)
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder
from presage.schedulers.live.agent.tasks.task_process import TaskState, task_state

SPEC = TaskSpec("job", 1, ("python", "train.py"), "/work", "/checkpoints/job")
TEXT = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"job_id": ""}, "job_id"),
        ({"attempt": -1}, "attempt=-1"),
        ({"attempt": True}, "attempt=True"),
        ({"command": ()}, "names no program"),
        ({"command": ("",)}, "names no program"),
        ({"command": ("a", "b\0")}, "zero byte"),
        ({"folder": "work"}, "folder='work', must be an absolute path"),
        ({"checkpoint": ""}, "checkpoint='', must be an absolute path"),
        ({"environment": {"": "x"}}, "not a valid environment variable"),
        ({"environment": {"A=B": "x"}}, "not a valid environment variable"),
        ({"environment": {"A": "\0"}}, "not a valid environment variable"),
        ({"cpus": ()}, "cpus"),
        ({"cpus": (-1,)}, "cpus"),
        ({"cuda": ()}, "cuda"),
        ({"cuda": (0, -1)}, "cuda"),
        ({"memory_bytes": -1}, "memory_bytes=-1"),
        ({"grace_s": float("nan")}, "grace_s=nan"),
        ({"log_bytes": 0}, "log_bytes=0"),
        ({"weight": 0}, "weight=0"),
    ],
)
def test_an_invalid_task_spec_is_rejected_with_the_reason(changed, why):
    with pytest.raises(InvalidJobError, match=why):
        replace(SPEC, **changed)


@pytest.mark.parametrize("milli", [0, 1001, -5, 1.5, True])
def test_an_invalid_share_is_rejected_with_the_reason(milli):
    with pytest.raises(InvalidJobError, match="compute_milli"):
        DesiredState(milli)


@given(
    job_id=st.text(min_size=1, max_size=50),
    command=st.lists(TEXT, min_size=1).map(tuple),
    environment=st.dictionaries(TEXT.filter(lambda key: "=" not in key), TEXT, max_size=3),
    cpus=st.none() | st.lists(st.integers(0, 100), min_size=1).map(tuple),
    cuda=st.none() | st.lists(st.integers(0, 8), min_size=1).map(tuple),
)
def test_a_task_spec_round_trips(job_id, command, environment, cpus, cuda):
    spec = replace(
        SPEC, job_id=job_id, command=command, environment=environment, cpus=cpus, cuda=cuda,
        agent_data={"runtime_s": [1.5, None]},
    )  # fmt: skip
    assert TaskSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_a_task_spec_of_the_single_gpu_format_is_read():
    older = {**SPEC.to_json(), "cuda": 3}

    assert TaskSpec.from_json(older).cuda == (3,)
    with pytest.raises(InvalidJobError):
        TaskSpec.from_json({**older, "cuda": True})


@given(st.integers(1, 1000), st.booleans(), st.none() | st.builds(End, st.booleans(), st.text()))
def test_a_desired_state_round_trips(milli, paused, end):
    wanted = DesiredState(milli, paused, end)
    assert DesiredState.from_json(json.loads(json.dumps(wanted.to_json()))) == wanted


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(said=st.dictionaries(st.sampled_from([*TaskSpec.__dataclass_fields__]), JSON))
def test_any_json_is_a_valid_task_spec_or_an_error(said):
    whole = {**SPEC.to_json(), **said}
    try:
        spec = TaskSpec.from_json(whole)
    except InvalidJobError:
        return
    assert spec.command and spec.job_id


@given(raw=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_files_of_a_task_folder_with_invalid_content_count_as_missing(tmp_path_factory, raw):
    folder = TaskFolder(tmp_path_factory.getbasetemp() / "tasks" / "garbage.1")
    folder.path.mkdir(parents=True, exist_ok=True)
    for name in ("spec", "wanted", "state", "progress", "exit"):
        (folder.path / f"{name}.json").write_bytes(raw)
    (folder.state / "lease").write_bytes(raw)

    assert folder.desired_state() is None
    assert folder.shim_state() is None
    assert folder.progress() is None
    assert folder.exit() is None
    assert read_lease(folder.state) is None
    with pytest.raises(InvalidJobError):
        folder.spec()
    assert task_state(folder) == TaskState.LOST


STATE = ShimState(5, 7, 99, 12.5, "boot", "cgroup v1")
EXIT = TaskExit(None, 9, "ended", 1e9, 12.5, 1.5, 4096)


@given(name=st.sampled_from([*asdict(EXIT)]), value=JSON)
def test_an_exit_is_read_completely_or_not_at_all(name, value):
    said = TaskExit.from_json({**asdict(EXIT), name: value})
    assert said is None or asdict(said) == {**asdict(EXIT), name: value}
    left_out = {key: kept for key, kept in asdict(EXIT).items() if key != name}
    assert TaskExit.from_json(left_out) is None


@given(name=st.sampled_from([*asdict(STATE)]), value=JSON)
def test_a_shim_state_is_read_completely_or_not_at_all(name, value):
    said = ShimState.from_json({**asdict(STATE), name: value})
    assert said is None or asdict(said) == {**asdict(STATE), name: value}


@given(one=st.text(min_size=1), other=st.text(min_size=1))
def test_job_ids_have_unique_file_names(one, other):
    assert (safe_name(one) == safe_name(other)) == (one == other)


@given(
    st.text(st.characters(), min_size=1)
    | st.sampled_from(["/", "..", ".", ".new-x", "a" * 5000, "é" * 400, "\ud800", "a\0b", "\n"])
)
def test_any_job_id_has_a_valid_file_name(job_id):
    name = task_name(job_id, 10**9)
    assert "/" not in name and name.isascii() and name.isprintable()
    assert not name.startswith(".")
    assert len(name) <= 200


def test_long_names_with_a_common_prefix_differ():
    assert safe_name("a" * 5000) != safe_name("a" * 5001)


def test_job_ids_and_attempts_are_not_ambiguous_in_task_names():
    assert len({task_name("a", 11), task_name("a.1", 1), task_name("a.1", 11)}) == 3


def test_a_lease_of_another_boot_is_ignored(tmp_path):
    write_lease(tmp_path, boottime_s() + 5.0)
    assert read_lease(tmp_path) == pytest.approx(boottime_s() + 5.0, abs=4.0)

    said = read_json(tmp_path / "lease")
    write_json(tmp_path / "lease", {**(said or {}), "boot_id": "another"})

    assert read_lease(tmp_path) is None


def test_an_infinite_lease_is_rejected(tmp_path):
    write_lease(tmp_path, 5.0)
    with pytest.raises(ValueError, match="JSON"):
        write_lease(tmp_path, float("inf"))
    assert read_lease(tmp_path) == 5.0
    assert [path.name for path in tmp_path.iterdir()] == ["lease"]


@pytest.mark.parametrize(
    "until_s", ["-1e999", "NaN", "1e999", '"9"', "null", "true", "[]", "9" * 400]
)
def test_an_invalid_lease_is_ignored(tmp_path, until_s):
    (tmp_path / "lease").write_text(f'{{"until_boottime_s": {until_s}, "boot_id": "{boot_id()}"}}')
    assert read_lease(tmp_path) is None


def test_a_file_that_cannot_be_replaced_stays_unchanged(tmp_path, monkeypatch):
    write_json(tmp_path / "x.json", {"a": 1})
    monkeypatch.setattr("presage.system.files.atomic_file.os.fsync", _no_space)

    with pytest.raises(OSError, match="No space"):
        write_json(tmp_path / "x.json", {"a": 2}, durable=True)

    assert read_json(tmp_path / "x.json") == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_only_files_that_must_survive_a_power_loss_are_synced_to_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("presage.system.files.atomic_file.os.fsync", _no_space)
    folder = TaskFolder(tmp_path)

    write_lease(tmp_path, boottime_s() + 5.0)
    folder.write_desired_state(DesiredState())
    with pytest.raises(OSError, match="No space"):
        folder.write_shim_state(STATE)
    with pytest.raises(OSError, match="No space"):
        folder.write_exit(EXIT)


def test_a_file_is_never_read_partially_while_it_is_replaced(tmp_path):
    path, ends_s = tmp_path / "x.json", time.monotonic() + 0.5
    write_json(path, {"a": 0})

    def write() -> None:
        count = 0
        while time.monotonic() < ends_s:
            count += 1
            write_json(path, {"a": count, "b": "x" * (count % 5000)}, durable=count % 7 == 0)

    writer = Thread(target=write)
    writer.start()
    while time.monotonic() < ends_s:
        assert read_json(path) is not None
    writer.join()


def _no_space(_: int) -> None:
    raise OSError(28, "No space left on device")
