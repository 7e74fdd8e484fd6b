"""Clusters and traces from files: what is right is read, what is wrong is named by its place."""

from __future__ import annotations

import pytest

from presage.errors import ConfigError, TableError
from presage.schedulers.cluster_files.cluster_file import read_cluster
from presage.schedulers.core.cluster import Node
from presage.schedulers.traces.formats import read_trace
from tests.schedulers.clusters import GIB

TRACE = "job_id,submit,gpus,duration,model\n"


def test_a_cluster_has_the_nodes_of_its_file_in_order(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "nodes:\n"
        "  - {name: b, devices: 8, kind: v100}\n"
        "  - {name: a, devices: 2, kind: mine, memory_gib: 1.5}\n"
    )
    found = read_cluster(path)

    assert found.nodes == (Node("b", 8, "v100", 32 * GIB), Node("a", 2, "mine", 3 * GIB // 2))
    assert [found.name_of(device) for device in (0, 7, 8, 9)] == ["b/0", "b/7", "a/0", "a/1"]
    assert found.kinds == {"v100": 8, "mine": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no nodes; write `nodes:`"),
        ("nodes: []", "no nodes"),
        ("nodes: [", "is not YAML"),
        ("nodes: 2021-99-99", "is not YAML"),
        ("[" * 5000, "is not YAML"),
        ("nodes: [n0]", r"nodes\[0\] is not a mapping"),
        ("nodes: [{name: n0, devices: 8}]", r"nodes\[0\].kind is missing"),
        (
            "nodes: [{name: n0, device: 8, kind: v100}]",
            r"device is not known; did you mean 'devices'",
        ),
        ("nodes: [{name: n0, devices: 0, kind: v100}]", "devices=0, must be >= 1"),
        ("nodes: [{name: n0, devices: many, kind: v100}]", "'many' is not an integer"),
        ("nodes: [{name: 7, devices: 1, kind: v100}]", "name=7 is not text"),
        (
            "nodes: [{name: n0, devices: 1, kind: v10}]",
            "'v10' is in the catalogue; did you mean .*memory_gib",
        ),
        *(
            (f"nodes: [{{name: n0, devices: 1, kind: v100, memory_gib: {value}}}]", words)
            for value, words in (
                (".nan", "memory_gib=nan, must be above 0 and at most 1,000,000"),
                (".inf", "memory_gib=inf, must"),
                ("0", "memory_gib=0, must"),
                ("1.0e+300", r"memory_gib=1e\+300, must"),
                ("1" + "0" * 400, "memory_gib=10+, must"),
                ("1e300", "memory_gib='1e300' is not a number .to YAML, 1e3 is text"),
            )
        ),
        (
            "nodes: [{name: n0, devices: 100000000000, kind: v100, within: nvswitch}]",
            "devices=100000000000, the limit is 1,000,000",
        ),
        (
            "nodes: [{name: 'n[0-99]', devices: 10001, kind: v100}]",
            "the cluster has 1,000,100 devices, the limit is 1,000,000",
        ),
        ("nodes: [&a {name: n0, devices: 1, kind: v100}, *a]", "two nodes are called 'n0'"),
    ],
)
def test_an_invalid_cluster_is_reported_in_one_line(tmp_path, text, words):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as error:
        read_cluster(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_trace_has_jobs_by_submission_and_their_durations_separately(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE + "a,9.5,2,100,resnet\nb,0,1,7.25,\n")
    found = read_trace(path)

    assert [(j.job_id, j.submit_s, j.gpus, j.model) for j in found.jobs] == [
        ("b", 0.0, 1, ""), ("a", 9.5, 2, "resnet")
    ]  # fmt: skip
    assert found.duration_s == {"a": 100.0, "b": 7.25}
    path.write_text("duration,job_id,gpus,submit\n5,a,1,0\n")
    assert read_trace(path).jobs[0].model == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("job_id,submit,gpus\na,0,1\n", "no column 'duration'"),
        ("", "has no header"),
        (TRACE + "a,-1,1,5,\n", "line 2: submit='-1', must be a number >= 0"),
        (TRACE + "a,0,1,5,\nb,1,1,,\n", "line 3: duration='', must"),
        (TRACE + "a,0,1\n", "line 2: 3 cells, and the header has 5; fix"),
        (
            TRACE + "a,1e13,1,5,\n",
            "submit='1e13', must be a number >= 0 and at most 1e12, as",
        ),
        (TRACE + "a,0,1,2e12,\n", "line 2: duration='2e12', must be a number >= 0 and at most"),
        (TRACE + "a,0,1,nan,\n", "line 2: duration='nan'"),
        (TRACE + "a,inf,1,5,\n", "line 2: submit='inf'"),
        (TRACE + "a,0,0,5,\n", "line 2: gpus='0', must be an integer >= 1"),
        (TRACE + "a,0,1.5,5,\n", "line 2: gpus='1.5', must"),
        (TRACE + "a,0,1,5,\na,0,1,5,\n", "line 3: duplicate job_id 'a'"),
    ],
)
def test_an_invalid_trace_is_reported_in_one_line_with_the_line_number(tmp_path, text, words):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TableError, match=words) as error:
        read_trace(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("read", "error"), [(read_cluster, ConfigError), (read_trace, TableError)])
def test_a_missing_file_is_named(tmp_path, read, error):
    with pytest.raises(error, match="No such file"):
        read(tmp_path / "absent")
    with pytest.raises(error, match="Is a directory"):
        read(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(error, match="is not "):
        read(tmp_path / "binary")
