"""The guide docs/schedulers/kubernetes.md matches the code and the output of the commands."""

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
from tests.schedulers.kubernetes.extender.test_extender import extender_cluster
from tests.schedulers.kubernetes.gated import gated_cluster
from tests.schedulers.kubernetes.manifests import node, pod, pod_group
from tests.schedulers.kubernetes.test_manifests import manifest

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/schedulers/kubernetes.md").read_text()
SOURCES = "\n".join(
    path.read_text() for path in sorted((ROOT / "schedulers" / "kubernetes").rglob("*.py"))
)


def rows(heading: str, table: int = 0) -> Iterator[list[str]]:
    """Yield the rows of a section's table, without its header."""
    section = GUIDE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    for line in tables[table].splitlines()[2:]:
        yield [cell.strip().strip("`") for cell in line.strip("|").split("|")]


def test_the_table_of_options_matches_the_commands():
    commands = typer.main.get_group(kubernetes_app).commands
    defined = {
        name: {
            option.opts[0]: "" if option.default in (None, "", False) else str(option.default)
            for option in command.params
            if option.opts[0].startswith("--")
        }
        for name, command in commands.items()
    }
    documented = {
        name: {row[0]: row[5] for row in rows("Options") if row[1 + column] == "x"}
        for column, name in enumerate(("gate", "extender", "gangs", "when"))
    }
    assert documented == defined


def test_the_table_of_labels_and_annotations_matches_the_code():
    names = set(re.findall(r'"([a-z0-9.-]+\.[a-z0-9-]+/[A-Za-z0-9._-]+)"', SOURCES))
    # A resource, and the taint of a cordoned node.
    names -= {"nvidia.com/gpu", "node.kubernetes.io/unschedulable"}
    assert {row[0] for row in rows("Labels and annotations")} == names


def test_the_table_of_rights_matches_the_roles():
    for column, name in enumerate(("presage-gate", "presage-extender"), 1):
        verbs = {
            resource: ", ".join(rule["verbs"])
            for rule in manifest("ClusterRole", name)["rules"]
            for resource in rule["resources"]
        }
        assert {row[0]: row[column] for row in rows("Rights") if row[column]} == verbs


def test_the_table_of_events_matches_the_code():
    reasons = set(re.findall(r'EmitEvent\([^"]*"(\w+)"', SOURCES))
    assert {row[0] for row in rows("Monitoring")} == reasons


def test_the_guide_shows_the_output_of_the_commands(tmp_path):
    printed = []
    nodes = [node(name, gpus=4) for name in ("a0", "b0")]
    with gated_cluster(*nodes) as cluster:
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(cluster.server.kubeconfig()))

        def run_gangs(*options: str) -> str:
            result = CliRunner().invoke(
                app, ["kubernetes", "gangs", "--kubeconfig", str(path), *options],
                env={"COLUMNS": "110"},
            )  # fmt: skip
            assert result.exit_code == 0, result.output
            return result.stdout

        for name, where, gpus in (("busy-0", "a0", 3), ("busy-1", "b0", 2)):
            cluster.server.create("pods", pod(name, gpus=gpus, nodeName=where))
        cluster.create_gang("classifier", 4, scheduleTimeoutSeconds=60)
        cluster.server.create("podgroups", pod_group("sweep", 3))
        sweep = pod("", gpus=1, gates=[GATE], labels={POD_GROUP_LABEL: "sweep"})
        cluster.jobs.create_pods("sweep", [sweep] * 2)
        cluster.write()
        printed += run_gangs().splitlines()[:7]
        cluster.server.set_phase("busy-1", "Succeeded")
        cluster.write()
        printed.append(run_gangs().splitlines()[4])
        cluster.settle()
        printed.append(run_gangs().splitlines()[4])
        (gang, _) = json.loads(run_gangs("--json"))
    assert len(printed) == 9
    for line in printed:
        assert line in GUIDE
    assert json.dumps([gang], indent=2).removeprefix("[\n").removesuffix("\n]") in GUIDE


def test_the_certificates_of_the_guide_match_the_manifests(tmp_path):
    for command in re.findall(r"^ *\$ (openssl .*)$", GUIDE, re.MULTILINE):
        subprocess.run(shlex.split(command), cwd=tmp_path, check=True, capture_output=True)
    (container,) = manifest("Deployment", "presage-extender")["spec"]["template"]["spec"][
        "containers"
    ]
    names = [Path(one).name for one in container["args"] if one.startswith("/etc/presage/")]
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "ca.crt")
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    server.verify_mode = ssl.CERT_REQUIRED
    (entry,) = manifest("KubeSchedulerConfiguration")["extenders"]
    files = {key: tmp_path / Path(path).name for key, path in entry["tlsConfig"].items()}
    client = ssl.create_default_context(cafile=files["caFile"])
    client.load_cert_chain(files["certFile"], files["keyFile"])

    assert names == ["tls.crt", "tls.key", "ca.crt"]
    complete_handshake(server, client, urlsplit(entry["urlPrefix"]).hostname or "")


def complete_handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Complete a TLS handshake; raise SSLError if a side does not trust the other."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    client_side = client.wrap_bio(to_client, to_server, server_hostname=name)
    for side in (client_side, server_side, client_side, server_side):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert server_side.getpeercert()


def test_the_guide_shows_the_reason_of_the_extender():
    with extender_cluster(node("a0", gpus=1)) as cluster:
        cluster.create("pods", pod("busy", gpus=1, nodeName="a0"))
        args = FilterArgs(pod("plain", gpus=1), dict.fromkeys(["a0"]), by_name=True)
        (reason,) = cluster.extender.filter(args).failed.values()
    assert reason in GUIDE
