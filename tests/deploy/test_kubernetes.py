"""Kubernetes manifests: valid by the schemas, confined pods, and commands that exist."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from tests.deploy.manifests import DEPLOY, MANIFESTS, ROOT, container, objects, tool, workloads
from tests.docs.test_docs import missing_files_allowed
from tests.support.command_lines import check_parses

KUBERNETES = DEPLOY / "kubernetes"
RENDERED = ["base", "agents", "overlays/example"]
GATE = "presage-gate"
NAMES = [name for name, _ in workloads()]


def rendered(name: str) -> list[dict]:
    done = subprocess.run(
        [tool("kubectl"), "kustomize", KUBERNETES / name], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if "unknown command" in done.stderr:
        pytest.skip("needs a kubectl with kustomize")
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_objects_are_valid_by_the_schemas_of_kubernetes(path):
    done = subprocess.run(
        [tool("kubernetes-validate"), "--strict", path], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", RENDERED)
def test_kustomize_renders_every_object_of_the_files(name):
    kinds = {(item["kind"], item["metadata"]["name"]) for item in rendered(name)}
    expected = {(item["kind"], item["metadata"]["name"]) for item in objects()}

    assert kinds <= expected
    assert len(kinds) == len(rendered(name))
    if name == "agents":
        assert kinds == {pair for pair in expected if re.search("controller|agent", pair[1])}


def test_the_overlay_sets_all_images_and_the_registry_of_models():
    pods = [
        item["spec"]["template"]["spec"]["containers"][0]
        for item in rendered("overlays/example")
        if item["kind"] in ("Deployment", "StatefulSet")
    ]
    served = next(pod for pod in pods if pod["name"] == "serve")

    assert len(pods) == 3
    assert {pod["image"] for pod in pods} == {
        f"registry.example.com/{container(name)['image']}" for name in ("presage-serve", GATE)
    }
    assert served["args"][-2:] == ["--registry", "http://mlflow.example.com:5000"]
    check_parses(served["args"])


def test_the_workloads_are_those_of_the_guide():
    assert sorted(NAMES) == [
        "presage-agent", "presage-controller", "presage-extender", "presage-gate", "presage-serve",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_meets_the_restricted_security_standard(name):
    pod = dict(workloads())[name]
    one = container(name)

    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 65532  # of the images
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert one["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in one["resources"]["requests"]
    for volume in pod["volumes"]:
        assert volume.keys() & {"secret", "emptyDir"}


@pytest.mark.parametrize("name", NAMES)
def test_the_command_has_no_unknown_option(name):
    one = container(name)
    assert one["command"] == ["presage"]

    with missing_files_allowed():
        check_parses([word.replace("$(NODE_NAME)", "node1") for word in one["args"]])


@pytest.mark.parametrize("name", NAMES)
def test_files_and_ports_of_a_command_are_those_of_its_pod(name):
    one = container(name)
    folders = [mount["mountPath"] for mount in one["volumeMounts"]]
    ports = {str(port["containerPort"]) for port in one.get("ports", ())}
    probe = one.get("readinessProbe", {}).get("exec", {}).get("command", [])

    for word in (*one["args"], *probe):
        if (path := word.removeprefix("sqlite:///")).startswith("/"):
            assert any(path.startswith(f"{folder}/") for folder in folders), word
        if re.fullmatch(r"127\.0\.0\.1:\d+", word):
            assert word.partition(":")[2] in ports
    for option, value in zip(one["args"], one["args"][1:], strict=False):
        if option in ("--port", "--metrics-port"):
            assert value in ports


def test_addresses_of_services_are_those_of_services_of_these_files():
    services = {
        f"{item['metadata']['name']}.presage": {str(port["port"]) for port in item["spec"]["ports"]}
        for item in objects()
        if item["kind"] == "Service"
    }
    for name in NAMES:
        for word in container(name)["args"]:
            if match := re.fullmatch(r"(presage-\w+\.presage):(\d+)", word):
                assert match[2] in services[match[1]], word


def test_images_have_the_version_of_the_package():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None

    for name in NAMES:
        which = "serve" if name == "presage-serve" else "cluster"
        assert container(name)["image"] == f"presage-{which}:{version[1]}"


def test_every_workload_has_a_network_policy_unless_it_only_connects():
    selected = {
        item["spec"]["podSelector"]["matchLabels"]["app"]
        for item in objects()
        if item["kind"] == "NetworkPolicy"
    }

    assert set(NAMES) - selected == {"presage-agent"}  # whose elastic jobs accept connections
