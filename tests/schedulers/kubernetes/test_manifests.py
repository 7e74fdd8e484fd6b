"""The example manifests match the Kubernetes API, each other and the code."""

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
from tests.schedulers.kubernetes.kube_scheduler.kube_scheduler import Binding, KubeScheduler
from tests.schedulers.kubernetes.manifests import POD_GROUP_DEFINITION, node, pod
from tests.serving.support.certificates import make_authority, make_certificate

FOLDER = Path(__file__).parents[3] / "examples" / "kubernetes"
ALL = [
    document
    for path in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
# API versions of custom resources and of configuration files.
CUSTOM_VERSIONS = (
    "scheduling.x-k8s.io/v1alpha1",
    "kubescheduler.config.k8s.io/v1",
    "kustomize.config.k8s.io/v1beta1",
)
BUILT_IN = [document for document in ALL if document["apiVersion"] not in CUSTOM_VERSIONS]


def manifest(kind: str, name: str = "") -> Json:
    """Return the only object of a kind, optionally with a name."""
    (found,) = [
        one for one in ALL if one["kind"] == kind and (not name or one["metadata"]["name"] == name)
    ]
    return dict(found)


def unknown_fields(value: Any, model: str, where: str) -> Iterator[str]:
    """Yield fields that the models of the official client do not have."""
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
def test_every_field_exists_in_the_kubernetes_api(document):
    assert list(unknown_fields(document, f"V1{document['kind']}", document["kind"])) == []


def test_unknown_fields_are_found():
    invalid = {
        "metadata": {"names": "a"},
        "spec": {"template": {"spec": {"containers": [{"arg": 1}]}}},
    }

    assert list(unknown_fields(invalid, "V1Deployment", "")) == [
        ".metadata.names",
        ".spec.template.spec.containers[].arg",
    ]


def test_the_api_server_accepts_the_gang_and_its_pods_are_gated():
    job = manifest("Job")["spec"]
    with ApiServer() as server:
        api = kubernetes_client.CustomObjectsApi(server.client())
        server.create("customresourcedefinitions", manifest("CustomResourceDefinition"))
        where = (POD_GROUP_GROUP, POD_GROUP_VERSION, "default", POD_GROUP_PLURAL)
        group = api.create_namespaced_custom_object(*where, manifest("PodGroup"))
        template = job["template"]
        metadata = {**template["metadata"], "name": "classifier-0"}
        created = server.create("pods", {"spec": template["spec"], "metadata": metadata})

    assert group["spec"]["minMember"] == job["completions"] == job["parallelism"] == 4
    assert created["metadata"]["labels"][POD_GROUP_LABEL] == group["metadata"]["name"]
    assert [gate["name"] for gate in created["spec"]["schedulingGates"]] == [GATE]
    assert created["status"]["conditions"][0]["reason"] == "SchedulingGated"
    assert created["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "8"}
    assert from_json(created["metadata"]["annotations"][JOB_FEATURES]).job.batch_size == 256


def test_members_of_the_gang_have_dns_names():
    job = manifest("Job")
    service = manifest("Service", "classifier")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    first = f"{job['metadata']['name']}-0.{service['metadata']['name']}"

    assert job["spec"]["completionMode"] == "Indexed"  # names its pods' hosts
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert f"--rdzv-endpoint={first}:29400" in container["args"]


def test_the_pod_group_definition_matches_the_tests_and_the_gang():
    definition, test_definition = (
        manifest("CustomResourceDefinition")["spec"],
        POD_GROUP_DEFINITION["spec"],
    )
    (version,) = definition["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]

    assert (
        definition["names"].items()
        >= {**test_definition["names"], "shortNames": ["pg", "pgs"]}.items()
    )
    assert (definition["group"], definition["scope"]) == (
        test_definition["group"],
        test_definition["scope"],
    )
    assert (version["name"], version["subresources"]) == (POD_GROUP_VERSION, {"status": {}})
    assert manifest("PodGroup")["spec"].keys() <= schema["spec"]["properties"].keys()


@pytest.mark.parametrize("name", ["presage-gate", "presage-extender"])
def test_each_deployment_has_its_own_role_and_minimal_privileges(name):
    deployment, role = manifest("Deployment", name), manifest("ClusterRoleBinding", name)
    spec = deployment["spec"]["template"]["spec"]
    account = manifest("ServiceAccount", name)["metadata"]
    (container,) = spec["containers"]

    assert spec["serviceAccountName"] == account["name"]
    assert role["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert role["roleRef"]["name"] == manifest("ClusterRole", name)["metadata"]["name"]
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
    verbs = {verb for rule in manifest("ClusterRole", name)["rules"] for verb in rule["verbs"]}
    assert "*" not in verbs


def test_kube_scheduler_is_configured_with_the_extender_s_address():
    (extender,) = manifest("KubeSchedulerConfiguration")["extenders"]
    service = manifest("Service", "presage-extender")
    deployment = manifest("Deployment", "presage-extender")["spec"]["template"]
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
def test_forecast_requests_have_a_token(name):
    """A service on a non-loopback address requires one."""
    spec = manifest("Deployment", name)["spec"]["template"]["spec"]

    assert secret_of(spec, "--token-file") == secret_of(spec, "--ca") == "presage-forecasts"


class LastNodeFirst:
    """Verbs that prefer the last node."""

    def __init__(self, server: ApiServer) -> None:
        self._core = kubernetes_client.CoreV1Api(server.client())
        self.pods: list[str] = []

    def filter(self, args: FilterArgs) -> FilterResult:
        self.pods.append(args.pod["metadata"]["name"])
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


def test_kube_scheduler_uses_the_extender_and_continues_without_it(tmp_path):
    configuration = manifest("KubeSchedulerConfiguration")
    authority = make_authority(tmp_path, "ca")
    tls = Tls(*make_certificate(tmp_path, "tls", authority), client_ca=authority[0])
    certificate, key = make_certificate(tmp_path, "scheduler", authority)
    files = {"certFile": str(certificate), "keyFile": str(key), "caFile": str(authority[0])}
    with ApiServer() as server:
        for name in ("n0", "n1"):
            server.create("nodes", node(name))
        server.create("pods", pod("plain"))
        server.create("pods", pod("trains", gpus=8))
        verbs = LastNodeFirst(server)
        with ExtenderServer(verbs, port=0, tls=tls) as extender:
            (entry,) = configuration["extenders"]
            assert entry["tlsConfig"].keys() == files.keys()
            entry = {**entry, "urlPrefix": extender.url, "tlsConfig": files}
            used = {**configuration, "extenders": [entry]}
            scheduler = KubeScheduler.configured(server.url, used)
            assert scheduler.step() == [
                Binding("default", "plain", "n0"),
                Binding("default", "trains", "n1"),
            ]
        assert verbs.pods == ["trains"]  # the other pod requests no GPU
        server.create("pods", pod("later", gpus=8))
        assert scheduler.step() == [Binding("default", "later", "n0")]


@pytest.mark.parametrize("name", ["presage-gate", "presage-extender"])
def test_the_commands_of_the_deployments_exist(name):
    (container,) = manifest("Deployment", name)["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["presage"]
    assert CliRunner().invoke(app, [*container["args"], "--help"]).exit_code == 0
    assert CliRunner().invoke(app, [*container["args"], "--slip", "--help"]).exit_code == 2
