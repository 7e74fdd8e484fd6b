"""The wheel works from any folder: commands find the pretrained release and keep data in place."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import presage.collectives
from presage.models.release.pretrained import pretrained_release
from presage.models.release.release import load_release, release_files
from presage.serving.client.client import PresageClient
from tests.package.installed import build_wheel, clean_environment, copy_sources, install
from tests.serving.support.processes import free_port

COLLECTIVES = Path(presage.collectives.__file__).resolve().parent


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    return copy_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="session")
def wheel(sources, tmp_path_factory):
    return build_wheel(sources, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def programs(wheel, tmp_path_factory):
    """Folders of programs by extra, each installed once."""
    made: dict[tuple[str, ...], Path] = {}

    def of(*extras: str) -> Path:
        if extras not in made:
            made[extras] = install(wheel, tmp_path_factory.mktemp("-".join(extras)), *extras)
        return made[extras]

    return of


@pytest.fixture
def user(tmp_path):
    """An empty current folder, and an empty home."""
    for name in ("here", "home"):
        (tmp_path / name).mkdir()
    return tmp_path


def run(program: Path, *arguments: object, user: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *map(str, arguments)], cwd=user / "here", env=clean_environment(user / "home"),
        text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


@contextmanager
def running(program: Path, *arguments: object, user: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [program, *map(str, arguments)], cwd=user / "here", env=clean_environment(user / "home"),
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_presage_is_imported_from_the_wheel_and_not_from_a_checkout(programs, user):
    done = run(programs("serve") / "python", "-c", "import presage; print(presage.__file__)",
               user=user)  # fmt: skip

    assert "site-packages/presage/__init__.py" in done.stdout
    assert not Path(done.stdout.strip()).is_symlink()


def test_wheel_and_sdist_hold_the_release_of_the_checkout(wheel, sources, tmp_path):
    built = subprocess.run(
        [sys.executable, "-c", "import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])",
         str(tmp_path)], cwd=sources, capture_output=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    again = build_wheel(next(tmp_path.glob("presage-*/")), tmp_path / "wheel")

    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()
    with zipfile.ZipFile(wheel) as content:
        for name in release_files(pretrained_release()):
            stored = content.read(f"presage/pretrained/release/{name}")
            assert stored == (pretrained_release() / name).read_bytes()


def test_wheel_holds_the_sources_that_are_compiled_on_first_use(wheel):
    with zipfile.ZipFile(wheel) as content:
        for folder in ("switch/aggregator", "table", "nccl_tuner"):
            for path in sorted((COLLECTIVES / folder).glob("*.[ch]")):
                stored = content.read(f"presage/collectives/{folder}/{path.name}")
                assert stored == path.read_bytes()


def test_serve_answers_with_the_installed_release_from_an_empty_folder(programs, user):
    with running(programs("serve") / "presage", "serve", "--port", 0, user=user) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.match(r"serving release (\w+) on (\S+)", said)
        assert found is not None, said
        release_id, target = found.groups()
        with PresageClient(target) as client:
            assert client.release().release_id == release_id
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0

    assert release_id == load_release(pretrained_release()).release_id
    assert files(user / "here") == []
    assert ".local/state/presage/outcomes/log.db" in files(user / "home")


def test_predict_answers_with_the_installed_release_from_an_empty_folder(programs, user, tmp_path):
    model = small_model(tmp_path / "model.onnx")

    done = run(
        programs("features", "serve") / "presage", "predict", "--job", model, "--device",
        "v100-16gb", "--json", user=user,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert load_release(pretrained_release()).release_id in done.stdout
    assert json.loads(done.stdout)
    assert files(user / "here") == []


def test_simulate_runs_from_an_empty_folder(programs, user, tmp_path):
    (tmp_path / "trace.csv").write_text("job_id,submit,gpus,duration\na,0,1,100\nb,5,1,10\n")
    (tmp_path / "cluster.yaml").write_text('nodes: [{name: "n0", devices: 1, kind: cpu-2}]\n')

    done = run(
        programs("schedulers") / "presage", "simulate", "--trace", tmp_path / "trace.csv",
        "--cluster", tmp_path / "cluster.yaml", "--policy", "fifo,sjf", user=user,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "sjf" in done.stdout
    assert files(user / "here") == []


def test_cluster_up_runs_a_job_from_an_empty_folder(programs, user):
    presage = programs("cluster") / "presage"
    port = free_port()
    here = f"127.0.0.1:{port}"
    with running(presage, "cluster", "up", "--port", port, user=user) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "controller at" in said, said + process.stderr.read()
        job = run(presage, "cluster", "submit", "--controller", here, "--", "echo", "done",
                  user=user)  # fmt: skip
        assert job.returncode == 0, job.stderr
        waited = run(presage, "cluster", "wait", "--controller", here, job.stdout.strip(),
                     user=user)  # fmt: skip
        process.send_signal(signal.SIGTERM)
        process.wait(60)

    assert waited.returncode == 0, waited.stderr
    assert files(user / "here") == []
    assert ".local/state/presage/cluster/controller.db" in files(user / "home")


@pytest.mark.parametrize(
    "options",
    [
        ["--release", "nowhere"],
        ["--tokens", "nowhere"],
        ["--tls-cert", "nowhere", "--tls-key", "nowhere"],
        ["--registry", "sqlite:///nowhere/mlflow.db"],
        ["--host", "0.0.0.0"],
        ["--port", "TAKEN"],
        ["--release", "nowhere", "--workers", "2"],
        ["--outcomes", f"new/folders/{'x' * 300}/log.db"],
    ],
    ids=" ".join,
)
def test_a_serve_that_fails_leaves_no_file_behind(user, tmp_path, options):
    with running(
        Path(sys.executable), "-c", HOLD_A_PORT, user=user
    ) as holder:  # a real listener, so that the port is taken
        assert holder.stdout is not None
        port = holder.stdout.readline().strip()
        said = [port if word == "TAKEN" else word for word in options]
        done = subprocess.run(
            [sys.executable, "-m", "presage", "serve", "--port", "0", *said],
            cwd=user / "here", env=clean_environment(user / "home") | {"PYTHONPATH": SRC},
            text=True, capture_output=True, timeout=120, check=False,
        )  # fmt: skip

    assert done.returncode == 1, done.stdout
    assert "error: " in done.stderr
    assert files(user / "here") == []
    assert files(user / "home") == []


SRC = str(Path(__file__).parents[2] / "src")
HOLD_A_PORT = """
import socket, time
held = socket.socket()
held.bind(("127.0.0.1", 0))
held.listen()
print(held.getsockname()[1], flush=True)
time.sleep(300)
"""


def small_model(path: Path) -> Path:
    """One matrix product and an activation."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [64, 8], [0.1] * 512)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Relu", ["h"], ["y"]),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [weights],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path
