"""Images: the Containerfile, and a run of what it installs, confined as a container is."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from presage.features.device.device import find_device
from presage.features.placement import Placement
from presage.serving.client.client import PresageClient
from presage.serving.client.credentials import Credentials
from tests.deploy.manifests import DEPLOY, ROOT, container, tool
from tests.package.installed import (
    FILES,
    SOURCES,
    build_wheel,
    copy_sources,
    install,
    requirements,
)
from tests.serving.conftest import make_job
from tests.serving.support.certificates import make_authority, make_certificate
from tests.serving.support.processes import free_port
from tests.support.in_process import presage
from tests.support.waiting import wait_until

CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
INSTRUCTIONS = re.sub(r"\s*\\\n\s*", " ", re.sub(r"^#.*\n", "", CONTAINERFILE, flags=re.MULTILINE))
LOCKED = re.compile(r"^([a-z0-9-]+)(?:\[[a-z,-]+\])?==([^\s;]+)", re.MULTILINE)
USER = 65532


def locked(name: str) -> dict[str, str]:
    return dict(LOCKED.findall((DEPLOY / f"{name}.lock").read_text()))


def stage(name: str) -> str:
    """Instructions of a stage."""
    found = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", INSTRUCTIONS, re.M | re.S)
    assert found is not None
    return found[1]


def test_hadolint_finds_nothing():
    done = subprocess.run(
        [tool("hadolint"), DEPLOY / "Containerfile"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_of_the_server_has_the_13_packages_of_its_extra():
    packages = {"presage", *locked("serve")}

    assert packages == {"presage", *requirements("presage", ("serve",))}
    assert len(packages) == 13


def test_the_image_of_the_cluster_has_the_packages_of_its_extras():
    pytest.importorskip(
        "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
    )
    on_linux = set(locked("cluster")) - {"colorama", "tzdata"}  # of Windows

    assert on_linux >= requirements("presage", ("cluster", "kubernetes"))


@pytest.mark.parametrize("name", ["serve", "cluster", "mlflow", "build"])
def test_images_have_the_versions_that_are_tested(name):
    tested: dict[str, str] = {}
    for lock in (ROOT / "requirements-ci.lock", ROOT / "requirements.lock"):
        tested |= dict(LOCKED.findall(lock.read_text()))

    assert {n: v for n, v in locked(name).items() if tested.get(n) != v} == {}
    assert "--hash=sha256:" in (DEPLOY / f"{name}.lock").read_text()


@pytest.mark.parametrize("name", ["serve", "cluster", "mlflow"])
def test_an_image_has_no_root_and_no_compiler(name):
    runtime = stage("runtime")

    assert re.search(rf"^FROM runtime AS {name}$", INSTRUCTIONS, re.M)
    assert runtime.strip().endswith(f"USER {USER}:{USER}")
    for words in (stage(name), runtime):
        assert "pip" not in words
        assert "apt" not in words
    assert "USER" not in stage(name)


def test_every_installation_checks_hashes_or_takes_the_wheel_only():
    for command in re.findall(r"pip (?:--python \S+ )?install ([^&\n]+)", INSTRUCTIONS):
        assert "--require-hashes" in command or command.endswith("--no-index /wheels/*.whl")


def test_the_build_context_has_the_sources_of_the_wheel_and_the_lock_files_only():
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copied = set(re.findall(r"^COPY (?!--from)(.+) \S+$", stage("wheel"), re.M))

    assert allowed == {*SOURCES, *FILES, "deploy/*.lock"}
    assert {word for words in copied for word in words.split()} == {*SOURCES, *FILES}


def test_the_health_check_of_the_image_is_a_module_of_the_wheel():
    assert '"python", "-m", "presage.serving.health_check"' in stage("serve")
    assert (ROOT / "serving/health_check.py").is_file()


# A run: the packages of the image, as its user, with a read-only root and one folder to write to.

UNCONFINED = os.geteuid() != 0 or any(
    shutil.which(name) is None for name in ("unshare", "setpriv", "openssl")
)
needs_root = pytest.mark.skipif(UNCONFINED, reason="needs root, unshare, setpriv and openssl")
# The state folder has the mode of an emptyDir with an fsGroup. A container has a Python of its own;
# here it is that of the tests, which may be in root's home, where other users find nothing. Control
# groups of this machine are hidden, as they are from a container.
CONFINE = f"""
set -e
mount --bind "$PYTHON" "$HELD/python"
mount --bind "$PACKAGES" "$HELD/packages"
mount -t tmpfs -o mode=755 tmpfs /root
mkdir -p "$PYTHON" "$PACKAGES"
mount --bind "$HELD/python" "$PYTHON"
mount --bind "$HELD/packages" "$PACKAGES"
mount -t tmpfs -o mode=2777,gid={USER} tmpfs "$STATE"
mount -t tmpfs -o ro tmpfs /sys/fs/cgroup
mount -o remount,bind,ro /
exec setpriv --reuid {USER} --regid {USER} --clear-groups --no-new-privs --bounding-set=-all \\
  --inh-caps=-all "$@"
"""


class Machine:
    """Folders of a machine that runs containers: installed packages, secrets, a state folder."""

    def __init__(self, root: Path) -> None:
        root.chmod(0o755)
        self.root, self.secrets, self.state = root, root / "secrets", root / "state"
        self.secrets.mkdir(mode=0o755)
        self.state.mkdir()
        for name in ("python", "packages"):
            (root / "held" / name).mkdir(parents=True)

    def command(self, words: list[str], **ports: int) -> list[str]:
        """Return a command of a manifest for this machine's folders and these ports."""
        text = "\n".join(words)
        text = re.sub(r"/etc/presage(-forecasts)?/", f"{self.secrets}/", text)
        text = text.replace("/var/lib/presage", str(self.state))
        for number, port in ports.items():
            text = re.sub(rf"\b{number[1:]}\b", str(port), text)
        return text.split("\n")

    @contextmanager
    def running(self, programs: Path, words: list[str]) -> Iterator[subprocess.Popen[str]]:
        """Run a program of an environment in a confined process."""
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(self.state),
            "XDG_STATE_HOME": str(self.state), "XDG_CACHE_HOME": f"{self.state}/cache",
            "STATE": str(self.state), "HELD": f"{self.root}/held", "PYTHON": sys.base_prefix,
            "PACKAGES": sys.prefix, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        with subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", CONFINE, "sh", *words], env=environment, cwd="/",
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(
        copy_sources(tmp_path_factory.mktemp("sources")), tmp_path_factory.mktemp("wheel")
    )


@pytest.fixture
def machine():
    # Not in a folder of pytest's, which it keeps to their owner.
    with TemporaryDirectory(prefix="presage-image-", dir="/var/tmp") as folder:
        yield Machine(Path(folder))


def write_secrets(folder: Path, server_name: str, *tokens: list[str]) -> dict[str, str]:
    """Write the keys of a secret of the manifests; return the tokens by client."""
    authority = make_authority(folder, "ca")
    certificate, key = make_certificate(folder, server_name, authority)
    for source, name in ((authority[0], "ca.crt"), (certificate, "tls.crt"), (key, "tls.key")):
        shutil.copy(source, folder / name)
    printed = {
        words[0]: presage("token", *words, "--file", folder / "tokens").stdout.split()[-1]
        for words in tokens
    }
    for path in folder.iterdir():  # as a secret's files with an fsGroup
        os.chown(path, 0, USER)
        path.chmod(0o440)
    return printed


@needs_root
def test_the_server_runs_without_root_on_a_read_only_file_system(wheel, machine):
    programs = install(wheel, machine.root / "opt", "serve")
    tokens = write_secrets(machine.secrets, "presage-serve.presage", ["client"])
    port, http, metrics = free_port(), free_port(), free_port()
    serve = container("presage-serve")
    words = [*serve["command"], *serve["args"]]
    words = machine.command(words, _50051=port, _8080=http, _9464=metrics)

    with machine.running(programs, words) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert f"0.0.0.0:{port}" in line, line + process.communicate()[1]
        assert f"https://0.0.0.0:{http}" in line
        user = Path(f"/proc/{process.pid}/status").read_text()
        assert re.search(rf"^Uid:\s+{USER}\s+{USER}", user, re.M)
        assert re.search(r"^CapBnd:\s+0+$", user, re.M)
        mounts = Path(f"/proc/{process.pid}/mountinfo").read_text()
        assert re.search(r"^\S+ \S+ \S+ / / ro,", mounts, re.M)
        probe = machine.command(serve["readinessProbe"]["exec"]["command"], _50051=port)
        probed = subprocess.run(
            [programs / probe[0], *probe[1:]], capture_output=True, text=True, check=False, cwd="/"
        )
        assert probed.returncode == 0, probed.stderr
        credentials = Credentials(token=tokens["client"], ca=machine.secrets / "ca.crt")
        with PresageClient(f"127.0.0.1:{port}", credentials=credentials) as client:
            (forecast,) = client.predict([Placement(make_job(), find_device("v100-16gb"))])
        assert forecast.step_time_s.median > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@needs_root
def test_controller_and_agent_run_a_job_without_root(wheel, machine):
    programs = install(wheel, machine.root / "opt", "cluster", "kubernetes")
    port = free_port()
    tokens = write_secrets(
        machine.secrets, "presage-controller.presage", ["user", "--role", "submit"],
        ["node1", "--role", "agent", "--node", "node1", "--device", "cpu-1:1"],
    )  # fmt: skip
    for name in ("node1.token", "token"):  # the latter of a server that does not run
        (machine.secrets / name).write_text(tokens["node1"])
    (machine.secrets / "user.token").write_text(tokens["user"])
    controller, agent = container("presage-controller"), container("presage-agent")
    head = machine.command([*controller["command"], *controller["args"]], _50061=port)
    words = machine.command([*agent["command"], *agent["args"]], _50061=port)
    node = [
        word.replace("$(NODE_NAME)", "node1").replace("presage-controller.presage", "127.0.0.1")
        for word in words
    ]
    client = [
        "--controller", f"127.0.0.1:{port}", "--ca", machine.secrets / "ca.crt", "--token-file",
        machine.secrets / "user.token",
    ]  # fmt: skip

    with (
        machine.running(programs, head) as controlling,
        machine.running(programs, [*node, "--device", "cpu-1=0"]) as running,
    ):
        assert controlling.stderr is not None
        assert running.stderr is not None
        probe = machine.command(controller["readinessProbe"]["exec"]["command"], _50061=port)
        wait_until(
            lambda: (
                not subprocess.run(
                    [programs / probe[0], *probe[1:]], capture_output=True, check=False, cwd="/"
                ).returncode
            )
        )
        job = presage("cluster", "submit", *client, "--", "echo", "done")
        assert job.returncode == 0, job.stderr
        wait_until(
            lambda: (
                running.poll() is not None
                or "finished" in presage("cluster", "ps", "--all", *client).stdout
            ),
            30,
            lambda: presage("cluster", "ps", "--all", *client).stdout,
        )
        for process in (running, controlling):
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, running.stderr.read()
