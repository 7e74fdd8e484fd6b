"""The command line as a person meets it: real processes, their words and exit codes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.serving.conftest import make_release

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "160", "NO_COLOR": "1"}
MODEL = """
import torch
from torch import nn

def small(batch_size):
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    return module, torch.empty(batch_size, 64)

def nothing():
    return 42
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli")
    (path / "mine.py").write_text(MODEL)
    ops = [
        helper.make_node("Wavelet", ["x"], ["w"], domain="their.own"),
        helper.make_node("Relu", ["w"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 16]) for n in "xy"]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("their.own", 1)]
    graph = helper.make_graph(ops, "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=opsets), path / "strange.onnx")
    (path / "broken.onnx").write_bytes(b"\x08\x07\x12\x04torch but not really an ONNX file")
    return path


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("release") / "release")


def presage(*arguments, cwd, timeout=120):
    return subprocess.run(
        [sys.executable, "-m", "presage", *map(str, arguments)],
        cwd=cwd, env=ENVIRONMENT, text=True, capture_output=True, timeout=timeout, check=False,
    )  # fmt: skip


def refused(done, *words):
    """Exit code 1, one line on standard error that says what, where and how to mend."""
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_help_lists_every_command_of_the_design(folder):
    done = presage("--help", cwd=folder)

    for command in ("profile", "features", "train", "evaluate", "models", "serve", "predict"):
        assert command in done.stdout
    assert done.returncode == 0


def test_features_of_a_function_are_shown_and_its_json_is_read_back_by_predict(folder, release):
    shown = presage("features", "mine:small", "--batch-size", 8, cwd=folder)
    assert "MatMul" in shown.stdout
    assert "2,212 parameters" in shown.stdout

    done = presage("features", "mine:small", "--batch-size", 8, "--json", cwd=folder)
    (folder / "job.json").write_text(done.stdout)
    answer = presage(
        "predict", "--job", "job.json", "--device", "cpu-2", "--release", release.folder,
        "--json", cwd=folder,
    )  # fmt: skip
    content = json.loads(answer.stdout)
    assert content["release_id"] == release.release_id
    assert content["jobs"][0]["batch_size"] == 8
    assert content["jobs"][0]["step_time_s"]["median"] > 0


def test_an_unknown_operator_is_counted_predicted_for_and_out_of_domain(folder, release):
    shown = presage("features", "strange.onnx", "--device", "v100", cwd=folder)
    assert "operators are of no known kind" in shown.stdout

    answer = presage(
        "predict", "--job", "strange.onnx", "--device", "cpu-2", "--release", release.folder,
        "--json", cwd=folder,
    )  # fmt: skip
    forecast = json.loads(answer.stdout)["jobs"][0]["step_time_s"]
    assert forecast["median"] > 0
    assert forecast["in_domain"] is False


def test_jobs_together_get_a_slowdown_each(folder, release):
    answer = presage(
        "predict", "--job", "mine:small", "--job", "mine:small", "--together", "--device",
        "cpu-2", "--release", release.folder, "--json", cwd=folder,
    )  # fmt: skip

    assert len(json.loads(answer.stdout)["slowdowns"]) == 2


def test_doctor_reports_this_machine(folder):
    found = {f["what"]: f for f in json.loads(presage("doctor", "--json", cwd=folder).stdout)}

    assert found["device"]["ok"]
    assert found["torch"]["found"].startswith("2.")


def test_doctor_says_when_a_server_does_not_answer(folder):
    done = presage("doctor", "--server", "127.0.0.1:9", "--json", cwd=folder)
    found = {f["what"]: f for f in json.loads(done.stdout)}

    assert found["server 127.0.0.1:9"]["ok"] is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["features", "broken.onnx"], ["broken.onnx", "not an ONNX file"]),
        (["features", "none.onnx"], ["none.onnx", "cannot be read"]),
        (["features", "mine:missing"], ["mine:missing", "module:function"]),
        (["features", "mine:nothing"], ["returned int", "(torch module, inputs)"]),
        (["features", "mine:small", "--device", "v1000"], ["v1000", "nearest is 'v100'"]),
        (["predict", "--job", "mine:small", "--release", "nowhere"], ["nowhere", "release.json"]),
        (["predict", "--job", "mine:small", "--server", "127.0.0.1:9"], ["127.0.0.1:9"]),
        (["predict", "--job", "none.json"], ["none.json", "cannot be read"]),
        (["serve", "--release", "nowhere"], ["nowhere/release.json", "cannot be read"]),
        (["serve", "--registry", "http://127.0.0.1:9"], ["http://127.0.0.1:9"]),
        (["profile", "--budget", "3s", "--out", "p"], ["budget of 3 s is too small"]),
        (["models", "show", "champion", "--registry", "sqlite:////proc/no/m.db"], ["/proc/no"]),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_1(folder, arguments, words):
    refused(presage(*arguments, cwd=folder), *words)


def test_a_damaged_release_is_refused_before_serving_starts(folder, release, tmp_path):
    copy = shutil.copytree(release.folder, tmp_path / "release")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (copy / "memory.onnx").write_bytes(b"not the model that was released")
    refused(
        presage("serve", "--release", copy, "--port", port, cwd=folder), "memory.onnx", "sha256"
    )


def test_a_port_in_use_is_named(folder, release):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = presage("serve", "--release", release.folder, "--port", port, cwd=folder)

    refused(done, f"127.0.0.1:{port} is in use", "--port")


def test_ctrl_c_while_profiling_exits_130_and_leaves_whole_tables(folder, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "presage", "profile", "--budget", "60s", "--out", tmp_path / "p"],
        cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    time.sleep(9)
    os.killpg(process.pid, signal.SIGINT)

    assert process.wait(timeout=30) == 130
    assert not list(Path(tmp_path).rglob("*.partial"))
