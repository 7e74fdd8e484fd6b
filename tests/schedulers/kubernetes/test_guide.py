"""The guide, docs/kubernetes.md: its tables are the code's, and it shows what commands print."""

from __future__ import annotations

import json
import re
import shlex
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import typer
import yaml
from typer.testing import CliRunner

pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from presage.cli.app import app
from presage.cli.scheduling.kubernetes.group import app as kubernetes_app
from presage.schedulers.kubernetes.extender.extender_types import FilterArgs
from presage.schedulers.kubernetes.kubernetes_names import GATE, POD_GROUP_LABEL
from tests.schedulers.kubernetes.extender.test_extender import world
from tests.schedulers.kubernetes.gated import gated
from tests.schedulers.kubernetes.manifests import node, pod, pod_group
from tests.schedulers.kubernetes.test_manifests import the

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "kubernetes.md").read_text()
SOURCES = "\n".join(
    path.read_text() for path in sorted((ROOT / "schedulers" / "kubernetes").rglob("*.py"))
)


def rows(heading: str, table: int = 0) -> Iterator[list[str]]:
    """Cells of a section's table, without its head."""
    section = GUIDE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    for line in tables[table].splitlines()[2:]:
        yield [cell.strip().strip("`") for cell in line.strip("|").split("|")]


def test_the_table_of_options_is_the_commands():
    commands = typer.main.get_group(kubernetes_app).commands
    had = {
        name: {
            option.opts[0]: "" if option.default in (None, "", False) else str(option.default)
            for option in command.params
        }
        for name, command in commands.items()
    }
    said = {
        name: {row[0]: row[4] for row in rows("Options") if row[1 + column] == "x"}
        for column, name in enumerate(("gate", "extender", "gangs"))
    }
    assert said == had


def test_the_table_of_labels_and_annotations_is_what_the_code_reads_and_writes():
    named = set(re.findall(r'"([a-z0-9.-]+\.[a-z0-9-]+/[A-Za-z0-9._-]+)"', SOURCES))
    # What pods ask for, and a taint that stands for a cordon.
    named -= {"nvidia.com/gpu", "node.kubernetes.io/unschedulable"}
    assert {row[0] for row in rows("Labels and annotations")} == named


def test_the_table_of_rights_is_that_of_the_roles():
    for column, name in enumerate(("presage-gate", "presage-extender"), 1):
        has = {
            resource: ", ".join(rule["verbs"])
            for rule in the("ClusterRole", name)["rules"]
            for resource in rule["resources"]
        }
        assert {row[0]: row[column] for row in rows("Rights") if row[column]} == has


def test_the_table_of_events_is_what_the_gate_says():
    reasons = set(re.findall(r'EmitEvent\([^"]*"(\w+)"', SOURCES))
    assert {row[0] for row in rows("Monitoring")} == reasons


def test_the_guide_shows_what_the_commands_print(tmp_path):
    printed = []
    nodes = [node(name, gpus=4) for name in ("a0", "b0")]
    with gated(*nodes) as cluster:
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(cluster.server.kubeconfig()))

        def look(*options: str) -> str:
            told = CliRunner().invoke(
                app, ["kubernetes", "gangs", "--kubeconfig", str(path), *options],
                env={"COLUMNS": "110"},
            )  # fmt: skip
            assert told.exit_code == 0, told.output
            return told.stdout

        for name, where, gpus in (("busy-0", "a0", 3), ("busy-1", "b0", 2)):
            cluster.server.create("pods", pod(name, gpus=gpus, nodeName=where))
        cluster.gang("classifier", 4, scheduleTimeoutSeconds=60)
        cluster.server.create("podgroups", pod_group("sweep", 3))
        sweep = pod("", gpus=1, gates=[GATE], labels={POD_GROUP_LABEL: "sweep"})
        cluster.jobs.owned("sweep", [sweep] * 2)
        cluster.write()
        printed += look().splitlines()[:7]
        cluster.server.set_phase("busy-1", "Succeeded")
        cluster.write()
        printed.append(look().splitlines()[4])
        cluster.settle()
        printed.append(look().splitlines()[4])
        (gang, _) = json.loads(look("--json"))
    assert len(printed) == 9
    for line in printed:
        assert line in GUIDE
    assert json.dumps([gang], indent=2).removeprefix("[\n").removesuffix("\n]") in GUIDE


def test_the_certificates_that_the_guide_makes_are_those_that_the_manifests_name(tmp_path):
    for command in re.findall(r"^ *\$ (openssl .*)$", GUIDE, re.MULTILINE):
        subprocess.run(shlex.split(command), cwd=tmp_path, check=True, capture_output=True)
    (container,) = the("Deployment", "presage-extender")["spec"]["template"]["spec"]["containers"]
    named = [Path(one).name for one in container["args"] if one.startswith("/etc/presage/")]
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "ca.crt")
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    server.verify_mode = ssl.CERT_REQUIRED
    (entry,) = the("KubeSchedulerConfiguration")["extenders"]
    files = {key: tmp_path / Path(path).name for key, path in entry["tlsConfig"].items()}
    client = ssl.create_default_context(cafile=files["caFile"])
    client.load_cert_chain(files["certFile"], files["keyFile"])

    assert named == ["tls.crt", "tls.key", "ca.crt"]
    shake_hands(server, client, urlsplit(entry["urlPrefix"]).hostname or "")


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Raises SSLError where one does not trust the other."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=name)
    for side in (theirs, ours, theirs, ours):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert ours.getpeercert()


def test_the_guide_shows_what_kube_scheduler_is_told():
    with world(node("a0", gpus=1)) as one:
        one.create("pods", pod("busy", gpus=1, nodeName="a0"))
        args = FilterArgs(pod("plain", gpus=1), dict.fromkeys(["a0"]), by_name=True)
        (why,) = one.extender.filter(args).failed.values()
    assert why in GUIDE
