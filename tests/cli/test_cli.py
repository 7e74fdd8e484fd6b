"""The command line as a person meets it: real processes, their words and exit codes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys

import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from presage.features.tables import schemas as tables
from presage.serving.client import job_features
from tests.features.examples import features
from tests.serving.conftest import make_release
from tests.support.waiting import wait_until

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "160", "NO_COLOR": "1"}
MODEL = """
import torch
from torch import nn

def small(batch_size):
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    return module, torch.empty(batch_size, 64)

def nothing():
    return 42

class Net(nn.Linear):
    def __init__(self, batch_size):
        super().__init__(batch_size, 1)

def fails(batch_size):
    return {}["absent"]
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
    huge = json.loads(job_features.to_json(features()))
    huge["op_stats"][0]["flops"] = 10**400
    (path / "huge.json").write_text(json.dumps(huge))
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


def presage_with(preparation, *arguments, cwd):
    """As :func:`presage`, after some lines of Python."""
    lines = ["import sys", f"sys.argv = {['presage', *arguments]}", preparation]
    return subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, "from presage.__main__ import main; main()"])],
        cwd=cwd, env=ENVIRONMENT, text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def refused(done, *words):
    """Check exit status 1 and one line on standard error that names the problem and the fix."""
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_help_lists_every_command(folder):
    done = presage("--help", cwd=folder)

    for command in ("profile", "features", "train", "evaluate", "models", "serve", "predict"):
        assert command in done.stdout
    assert done.returncode == 0


def test_features_of_a_function_are_printed_and_predict_reads_their_json(folder, release):
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


def test_an_option_overrides_iterations_but_not_the_batch_size_of_a_json_job(folder, release):
    done = presage(
        "features", "mine:small", "--batch-size", 8, "--iterations", 77, "--json", cwd=folder
    )
    assert json.loads(done.stdout)["iterations"] == "77"
    (folder / "own.json").write_text(done.stdout)
    ask = ["predict", "--job", "own.json", "--device", "cpu-2", "--release", release.folder]

    for said, iterations in (([], 77), (["--iterations", 9], 9)):
        answer = presage(*ask, *said, "--json", cwd=folder)
        assert json.loads(answer.stdout)["jobs"][0]["iterations"] == iterations
    refused(presage(*ask, "--batch-size", 8, cwd=folder), "own.json", "--batch-size cannot change")


def test_an_unmeasured_machine_is_described_by_its_own_hardware(folder, release):
    elsewhere = "import os; os.sched_getaffinity = lambda pid: set(range(61))"
    done = presage_with(
        elsewhere, "predict", "--job", "mine:small", "--release", str(release.folder), "--json",
        cwd=folder,
    )  # fmt: skip
    answer = json.loads(done.stdout)

    assert answer["device"] == "cpu-61"
    assert answer["jobs"][0]["step_time_s"]["in_domain"] is False


def test_a_job_with_an_unknown_operator_has_an_out_of_domain_forecast(folder, release):
    shown = presage("features", "strange.onnx", "--device", "v100", cwd=folder)
    assert "operators are of unknown kind" in shown.stdout

    answer = presage(
        "predict", "--job", "strange.onnx", "--device", "cpu-2", "--release", release.folder,
        "--json", cwd=folder,
    )  # fmt: skip
    forecast = json.loads(answer.stdout)["jobs"][0]["step_time_s"]
    assert forecast["median"] > 0
    assert forecast["in_domain"] is False


def test_co_located_jobs_get_a_slowdown_each(folder, release):
    answer = presage(
        "predict", "--job", "mine:small", "--job", "mine:small", "--colocated", "--device",
        "cpu-2", "--release", release.folder, "--json", cwd=folder,
    )  # fmt: skip

    assert len(json.loads(answer.stdout)["slowdowns"]) == 2


def test_scaling_is_shown_for_each_size_and_follows_measured_steps(folder, release):
    ask = (
        "predict", "--job", "mine:small", "--device", "cpu-2", "--release", release.folder,
        "--scaling", "1,8x2", "--requested", "2",
    )  # fmt: skip
    shown = presage(*ask, cwd=folder)
    assert "speed-ups refer to: 2 GPUs on 1 node" in shown.stdout, shown.stderr
    assert "scaling law: built-in" in shown.stdout

    before, after = (
        json.loads(presage(*ask, "--json", *more, cwd=folder).stdout)
        for more in ((), ("--measured", "8x2=5.0", "--measured", "4=1"))
    )
    assert [row["gpus"] for row in after["placements"]] == [1, 8]
    assert (before["law_fitted"], before["coverage"]) == (False, 0.8)
    of_8 = [content["placements"][1] for content in (before, after)]
    assert of_8[0]["step_time_s"]["median"] < 1 < of_8[1]["step_time_s"]["median"]
    assert [row["extrapolated"] for row in of_8] == [True, False]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--scaling", "2y3"), "'2y3' is no size"),
        (("--scaling", "1x2"), "placements[0].nodes=2"),
        (("--scaling", "2", "--measured", "2"), "must be SIZE=SECONDS"),
        (("--scaling", "2", "--measured", "2=-1"), "measured[0].step_time_s"),
        (("--scaling", "2", "--colocated"), "give one --job"),
    ],
)
def test_an_impossible_size_is_one_line(folder, release, options, error):
    ask = ("predict", "--job", "mine:small", "--device", "cpu-2", "--release", release.folder)

    refused(presage(*ask, *options, cwd=folder), error)


def test_doctor_reports_this_machine(folder):
    found = {f["what"]: f for f in json.loads(presage("doctor", "--json", cwd=folder).stdout)}

    assert found["device"]["ok"]
    assert found["torch"]["found"].startswith("2.")


def test_doctor_reports_a_server_that_does_not_respond(folder):
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
        (["features", "mine:Net"], ["returned Net", "(torch module, inputs)"]),
        (["features", "mine:fails"], ["mine:fails: KeyError: 'absent' (mine.py, line "]),
        (["features", "huge.json"], ["huge.json: ", "flops"]),
        (["features", "strange.onnx", "--dim", "x=²"], ["'x=²' is not NAME=N"]),
        (["features", "strange.onnx", "--dim", "batch=64"], ["pass --batch-size 64"]),
        (
            ["features", "mine:small", "--device", "v1000"],
            ["--device: no device of kind 'v1000' is", "mean 'v100'"],
        ),
        (["predict", "--job", "mine:small", "--release", "nowhere"], ["nowhere", "release.json"]),
        (["predict", "--job", "mine:small", "--server", "127.0.0.1:9"], ["127.0.0.1:9"]),
        (["predict", "--job", "none.json"], ["none.json", "cannot be read"]),
        (["serve", "--release", "nowhere"], ["nowhere/release.json", "cannot be read"]),
        (["serve", "--registry", "http://127.0.0.1:9"], ["http://127.0.0.1:9"]),
        (["profile", "--budget", "3s", "--out", "p"], ["budget of 3 s is too small"]),
        (["profile", "--threads", "999", "--out", "p"], ["threads=999"]),
        (["profile", "--window-s", "0", "--out", "p"], ["window_s=0"]),
        (["profile", "--solo-share", "2", "--out", "p"], ["solo_share=2"]),
        (["profile", "--families", "mpl", "--out", "p"], ["'mpl'", "did you mean 'mlp'"]),
        (["models", "show", "champion", "--registry", "sqlite:////proc/no/m.db"], ["/proc/no"]),
    ],
)
def test_invalid_input_is_reported_in_one_line_with_exit_status_1(folder, arguments, words):
    refused(presage(*arguments, cwd=folder), *words)


def test_a_damaged_release_is_rejected_before_serving_starts(folder, release, tmp_path):
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


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("typer", ["--help"], "cli"),
        ("onnx", ["features", "strange.onnx"], "features"),
        ("torch", ["features", "mine:small"], "profile"),
    ],
)
def test_a_missing_optional_package_is_named_with_the_command_to_install_it(
    folder, package, arguments, extra
):
    # Features that another test has cached need no torch.
    without = (
        f"import os; os.environ['PRESAGE_FEATURE_CACHE'] = 'off'; sys.modules[{package!r}] = None"
    )
    refused(
        presage_with(without, *arguments, cwd=folder),
        repr(package), f"pip install 'presage[{extra}]'",
    )  # fmt: skip


def test_profile_reads_params_yaml_and_options_override_it(tmp_path):
    (tmp_path / "params.yaml").write_text("profile: {budget_s: 4, families: [mlp]}")
    (tmp_path / "typo.yaml").write_text("profile: {budgets: 4}")

    refused(presage("profile", cwd=tmp_path), "budget of 4 s is too small")
    refused(presage("profile", "--budget", "5s", cwd=tmp_path), "budget of 5 s is too small")
    refused(presage("profile", "--params", "typo.yaml", cwd=tmp_path), "budgets")


def test_ctrl_c_ends_any_command_with_one_line_and_exit_status_130(folder):
    interrupts = """
import presage.cli.measuring.diagnosis
def interrupted(*_): raise KeyboardInterrupt
presage.cli.measuring.diagnosis.diagnose = interrupted"""
    done = presage_with(interrupts, "doctor", cwd=folder)

    assert (done.returncode, done.stderr) == (130, "interrupted; files are complete\n")


def test_ctrl_c_while_profiling_leaves_complete_tables_and_no_processes(tmp_path):
    out = tmp_path / "p"
    process = subprocess.Popen(
        [sys.executable, "-m", "presage", "profile", "--budget", "90s", "--out", out],
        cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: (out / "devices.parquet").exists() or process.poll() is not None, 80)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)

    assert process.returncode == 130, said
    assert said.endswith("interrupted; files are complete\n")
    assert "Traceback" not in said
    assert not list(out.rglob("*.partial"))
    for path in out.glob("*.parquet"):
        assert tables.read(tables.TABLES[path.stem], path) is not None
    assert not [p for p in psutil.process_iter() if _runs_in(p, tmp_path)]


def _runs_in(process, folder):
    """Whether a process, or the one that started it, was started in ``folder``."""
    try:
        return process.cwd() == str(folder)
    except psutil.Error:
        return False


@pytest.mark.parametrize(("umask", "kept"), [("000", "022"), ("002", "002"), ("077", "077")])
def test_no_command_creates_world_writable_files(umask, kept):
    code = (
        "import atexit, os, sys; from presage.__main__ import main; sys.argv = ['presage', 'serve',"
        " '--help']; atexit.register(lambda: print(f'mask {os.umask(0):03o}')); main()"
    )
    command = f'umask {umask}; exec "$0" -c "$1"'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, code], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith(f"mask {kept}\n")
