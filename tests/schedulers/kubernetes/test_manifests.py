"""The example manifests: what Kubernetes knows, what each other says, what the code is called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from typer.testing import CliRunner

pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from kubernetes import client as kubernetes_client

from presage.cli.app import app
from presage.schedulers.kubernetes.extender.extender_server import DEFAULT_PORT, ExtenderServer
from presage.schedulers.kubernetes.extender.extender_types import (
    BindArgs,
    FilterArgs,
    FilterResult,
    HostPriority,
    PreemptArgs,
    Victims,
)
from presage.schedulers.kubernetes.kubernetes_names import (
    GATE,
    JOB_FEATURES,
    POD_GROUP_GROUP,
    POD_GROUP_LABEL,
    POD_GROUP_PLURAL,
    POD_GROUP_VERSION,
)
from presage.schedulers.kubernetes.snapshot import Json
from presage.serving.client.job_features import from_json
from presage.serving.server_options import Tls
from tests.schedulers.kubernetes.api_server.api_server import ApiServer
from tests.schedulers.kubernetes.kube_scheduler.kube_scheduler import Bound, KubeScheduler
from tests.schedulers.kubernetes.manifests import POD_GROUP_DEFINITION, node, pod
from tests.serving.support.certificates import make_authority, make_certificate

FOLDER = Path(__file__).parents[3] / "examples" / "kubernetes"
ALL = [
    document
    for path in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
# What the API server itself does not define.
OTHERS = ("scheduling.x-k8s.io/v1alpha1", "kubescheduler.config.k8s.io/v1")
BUILT_IN = [document for document in ALL if document["apiVersion"] not in OTHERS]


def the(kind: str, name: str = "") -> Json:
    """The one object of that kind, and name where it is given."""
    (found,) = [
        one for one in ALL if one["kind"] == kind and (not name or one["metadata"]["name"] == name)
    ]
    return dict(found)


def unknown_fields(value: Any, model: str, where: str) -> Iterator[str]:
    """Fields that Kubernetes' API has not, by the official client's models of it."""
    if model.startswith("list["):
        for one in value:
            yield from unknown_fields(one, model[5:-1], f"{where}[]")
    elif model.startswith("dict("):
        for key, one in value.items():
            yield from unknown_fields(one, model[5:-1].split(", ")[1], f"{where}[{key}]")
    elif model.startswith("V1"):
        of = getattr(kubernetes_client, model)
        types = {key: of.openapi_types[name] for name, key in of.attribute_map.items()}
        for key, one in value.items():
            if key in types:
                yield from unknown_fields(one, types[key], f"{where}.{key}")
            else:
                yield f"{where}.{key}"


@pytest.mark.parametrize(
    "document", BUILT_IN, ids=[f"{one['kind']} {one['metadata']['name']}" for one in BUILT_IN]
)
def test_every_field_is_one_of_kubernetes(document):
    assert list(unknown_fields(document, f"V1{document['kind']}", document["kind"])) == []


def test_a_slip_in_a_field_would_be_found():
    slip = {
        "metadata": {"names": "a"},
        "spec": {"template": {"spec": {"containers": [{"arg": 1}]}}},
    }

    assert list(unknown_fields(slip, "V1Deployment", "")) == [
        ".metadata.names",
        ".spec.template.spec.containers[].arg",
    ]


def test_the_gang_is_taken_by_the_api_server_and_waits_for_its_plan():
    job = the("Job")["spec"]
    with ApiServer() as server:
        api = kubernetes_client.CustomObjectsApi(server.client())
        server.create("customresourcedefinitions", the("CustomResourceDefinition"))
        where = (POD_GROUP_GROUP, POD_GROUP_VERSION, "default", POD_GROUP_PLURAL)
        group = api.create_namespaced_custom_object(*where, the("PodGroup"))
        template = job["template"]
        metadata = {**template["metadata"], "name": "classifier-0"}
        made = server.create("pods", {"spec": template["spec"], "metadata": metadata})

    assert group["spec"]["minMember"] == job["completions"] == job["parallelism"] == 4
    assert made["metadata"]["labels"][POD_GROUP_LABEL] == group["metadata"]["name"]
    assert [gate["name"] for gate in made["spec"]["schedulingGates"]] == [GATE]
    assert made["status"]["conditions"][0]["reason"] == "SchedulingGated"
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "8"}
    assert from_json(made["metadata"]["annotations"][JOB_FEATURES]).job.batch_size == 256


def test_members_of_the_gang_find_each_other():
    job = the("Job")
    service = the("Service", "classifier")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    first = f"{job['metadata']['name']}-0.{service['metadata']['name']}"

    assert job["spec"]["completionMode"] == "Indexed"  # names its pods' hosts
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert f"--rdzv-endpoint={first}:29400" in container["args"]


def test_the_definition_is_the_one_that_tests_use_and_allows_what_the_gang_says():
    ours, used = the("CustomResourceDefinition")["spec"], POD_GROUP_DEFINITION["spec"]
    (version,) = ours["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]

    assert ours["names"].items() >= {**used["names"], "shortNames": ["pg", "pgs"]}.items()
    assert (ours["group"], ours["scope"]) == (used["group"], used["scope"])
    assert (version["name"], version["subresources"]) == (POD_GROUP_VERSION, {"status": {}})
    assert the("PodGroup")["spec"].keys() <= schema["spec"]["properties"].keys()


@pytest.mark.parametrize("name", ["presage-gate", "presage-extender"])
def test_each_runs_as_its_own_account_with_its_own_role_and_as_little_of_a_machine(name):
    deployment, role = the("Deployment", name), the("ClusterRoleBinding", name)
    spec = deployment["spec"]["template"]["spec"]
    account = the("ServiceAccount", name)["metadata"]
    (container,) = spec["containers"]

    assert spec["serviceAccountName"] == account["name"]
    assert role["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert role["roleRef"]["name"] == the("ClusterRole", name)["metadata"]["name"]
    assert (
        deployment["spec"]["selector"]["matchLabels"]
        == (deployment["spec"]["template"]["metadata"]["labels"])
    )
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    verbs = {verb for rule in the("ClusterRole", name)["rules"] for verb in rule["verbs"]}
    assert "*" not in verbs


def test_kube_scheduler_asks_where_the_extender_listens():
    (extender,) = the("KubeSchedulerConfiguration")["extenders"]
    service = the("Service", "presage-extender")
    deployment = the("Deployment", "presage-extender")["spec"]["template"]
    (container,) = deployment["spec"]["containers"]
    (port,) = service["spec"]["ports"]
    where = urlsplit(extender["urlPrefix"])

    assert where.hostname == f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert where.port == port["port"] == container["ports"][0]["containerPort"] == DEFAULT_PORT
    assert (where.scheme, extender["enableHTTPS"]) == ("https", True)
    assert container["args"][container["args"].index("--port") + 1] == str(DEFAULT_PORT)
    for option in ("--tls-cert", "--tls-key", "--client-ca"):
        assert secret_of(deployment["spec"], option) == "presage-extender"
    assert service["spec"]["selector"] == deployment["metadata"]["labels"]


def secret_of(spec: Json, option: str) -> str:
    """Return the secret that holds the file which an option of the only container names."""
    (container,) = spec["containers"]
    path = container["args"][container["args"].index(option) + 1]
    (mounted,) = [
        mount["name"]
        for mount in container["volumeMounts"]
        if path.startswith(f"{mount['mountPath']}/")
    ]
    (secret,) = [
        volume["secret"]["secretName"] for volume in spec["volumes"] if volume["name"] == mounted
    ]
    return str(secret)


@pytest.mark.parametrize("name", ["presage-gate", "presage-extender"])
def test_forecasts_are_asked_for_with_a_token(name):
    """A service beyond loopback answers no others."""
    spec = the("Deployment", name)["spec"]["template"]["spec"]

    assert secret_of(spec, "--token-file") == secret_of(spec, "--ca") == "presage-forecasts"


class Backwards:
    """Prefers the last node."""

    def __init__(self, server: ApiServer) -> None:
        self._core = kubernetes_client.CoreV1Api(server.client())
        self.asked: list[str] = []

    def filter(self, args: FilterArgs) -> FilterResult:
        self.asked.append(args.pod["metadata"]["name"])
        assert args.by_name
        return FilterResult(list(args.nodes))

    def prioritize(self, args: FilterArgs) -> list[HostPriority]:
        return [HostPriority(name, i) for i, name in enumerate(args.nodes)]

    def bind(self, args: BindArgs) -> str:
        body = {"metadata": {"name": args.pod_name}, "target": {"kind": "Node", "name": args.node}}
        self._core.create_namespaced_pod_binding(
            args.pod_name, args.pod_namespace, body, _preload_content=False
        )
        return ""

    def preempt(self, args: PreemptArgs) -> Mapping[str, Victims]:
        return args.victims

    def status(self) -> Json:
        return {}


def test_kube_scheduler_takes_the_configuration_and_goes_on_when_the_extender_is_gone(tmp_path):
    configuration = the("KubeSchedulerConfiguration")
    authority = make_authority(tmp_path, "ca")
    tls = Tls(*make_certificate(tmp_path, "tls", authority), client_ca=authority[0])
    certificate, key = make_certificate(tmp_path, "scheduler", authority)
    files = {"certFile": str(certificate), "keyFile": str(key), "caFile": str(authority[0])}
    with ApiServer() as server:
        for name in ("n0", "n1"):
            server.create("nodes", node(name))
        server.create("pods", pod("plain"))
        server.create("pods", pod("trains", gpus=8))
        verbs = Backwards(server)
        with ExtenderServer(verbs, port=0, tls=tls) as extender:
            (entry,) = configuration["extenders"]
            assert entry["tlsConfig"].keys() == files.keys()
            entry = {**entry, "urlPrefix": extender.url, "tlsConfig": files}
            asked = {**configuration, "extenders": [entry]}
            scheduler = KubeScheduler.configured(server.url, asked)
            assert scheduler.step() == [
                Bound("default", "plain", "n0"),
                Bound("default", "trains", "n1"),
            ]
        assert verbs.asked == ["trains"]  # the other asks for no GPU
        server.create("pods", pod("later", gpus=8))
        assert scheduler.step() == [Bound("default", "later", "n0")]


@pytest.mark.parametrize("name", ["presage-gate", "presage-extender"])
def test_the_commands_of_the_deployments_are_known(name):
    (container,) = the("Deployment", name)["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["presage"]
    assert CliRunner().invoke(app, [*container["args"], "--help"]).exit_code == 0
    assert CliRunner().invoke(app, [*container["args"], "--slip", "--help"]).exit_code == 2
