"""Client of a scheduler extender, as in kube-scheduler.

References
----------
kubernetes/kubernetes: staging/src/k8s.io/kube-scheduler/extender/v1/types.go (its fields have no
JSON tags, so keys are `Pod`, `NodeNames`; responses are read case-insensitively) and
pkg/scheduler/extender.go.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from typing import Any

from tests.schedulers.kubernetes.api_server.statuses import Json
from tests.schedulers.kubernetes.kube_scheduler.json_http import HttpError, call

DEFAULT_TIMEOUT_S = 5.0
MAX_NODE_SCORE = 100
MAX_EXTENDER_PRIORITY = 10
UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
KEYS = {
    "urlPrefix", "filterVerb", "prioritizeVerb", "bindVerb", "preemptVerb", "weight",
    "nodeCacheCapable", "ignorable", "httpTimeout", "managedResources",
    "enableHTTPS", "tlsConfig",
}  # fmt: skip


class ExtenderError(Exception):
    """The extender is unreachable, reports an error, or returns an invalid response."""


@dataclass(frozen=True)
class FilterResponse:
    """Nodes that passed an extender, and the reasons for the others by node."""

    nodes: list[Json]
    failed: dict[str, str]
    unresolvable: dict[str, str]


def duration_s(text: str) -> float:
    """Parse a Go duration such as "30s", "1m30s", "100ms"."""
    parts = re.findall(r"([\d.]+)(ms|s|m|h)", text)
    if "".join(number + unit for number, unit in parts) != text or not parts:
        raise ValueError(f"httpTimeout: {text!r} is not a duration such as 30s")
    return sum(float(number) * UNITS_S[unit] for number, unit in parts)


def field(response: Any, name: str) -> Any:
    """Return a field by its case-insensitive name, as Go's decoder does; None if missing."""
    if not isinstance(response, dict):
        raise ExtenderError(f"json: cannot unmarshal {response!r} into a Go struct")
    return next((v for k, v in response.items() if k.lower() == name.lower()), None)


def tls_context(config: Json) -> ssl.SSLContext | None:
    """Return the TLS context of `tlsConfig` (makeTransport of extender.go); None if missing."""
    files = config.get("tlsConfig")
    if files is None:
        if config.get("enableHTTPS"):
            raise ValueError(
                "extender: enableHTTPS without a CA trusts any server; not supported here"
            )
        return None
    if files.keys() != {"certFile", "keyFile", "caFile"}:
        raise ValueError(f"extender: tlsConfig {sorted(files)} not supported here")
    context = ssl.create_default_context(cafile=files["caFile"])
    context.load_cert_chain(files["certFile"], files["keyFile"])
    return context


class Extender:
    """Entry of `extenders` in a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1)."""

    def __init__(self, config: Json) -> None:
        if unknown := config.keys() - KEYS:
            raise ValueError(f"extender: {sorted(unknown)} not supported here")
        if config.get("prioritizeVerb") and config.get("weight", 0) <= 0:
            raise ValueError("extender: a prioritizer needs a positive weight")
        self._config = config
        self._timeout_s = duration_s(config["httpTimeout"]) if config.get("httpTimeout") else 0.0
        self._tls = tls_context(config)
        self.name: str = config["urlPrefix"]
        self.ignorable = bool(config.get("ignorable"))
        self.binds = bool(config.get("bindVerb"))
        self.preempts = bool(config.get("preemptVerb"))
        self._by_name = bool(config.get("nodeCacheCapable"))
        managed = config.get("managedResources", [])
        self._managed = {resource["name"] for resource in managed}
        self.ignored_resources = {r["name"] for r in managed if r.get("ignoredByScheduler")}

    def is_interested(self, pod: Json) -> bool:
        """Return whether a pod requests a managed resource, or none is configured."""
        spec = pod["spec"]
        quantities = [
            container.get("resources", {}).get(kind, {})
            for container in [*spec["containers"], *spec.get("initContainers", [])]
            for kind in ("requests", "limits")
        ]
        return not self._managed or any(self._managed & named.keys() for named in quantities)

    def filter(self, pod: Json, nodes: list[Json]) -> FilterResponse:
        if not self._config.get("filterVerb"):
            return FilterResponse(nodes, {}, {})
        response = self._send("filterVerb", self._arguments(pod, nodes))
        if error := field(response, "Error"):
            raise ExtenderError(error)
        passed: list[Json] = []
        names, full = field(response, "NodeNames"), field(response, "Nodes")
        if self._by_name and names is not None:
            known = {node["metadata"]["name"]: node for node in nodes}
            if unknown := [name for name in names if name not in known]:
                raise ExtenderError(
                    f"{self.name} claims filtered nodes {unknown}, not in its input"
                )
            passed = [known[name] for name in names]
        elif full is not None:
            passed = full.get("items") or []
        return FilterResponse(
            passed,
            field(response, "FailedNodes") or {},
            field(response, "FailedAndUnresolvableNodes") or {},
        )

    def scores(self, pod: Json, nodes: list[Json]) -> dict[str, int]:
        """Return weighted scores by node, scaled from 10 to the scheduler's 100."""
        if not self._config.get("prioritizeVerb"):
            return {}
        response = self._send("prioritizeVerb", self._arguments(pod, nodes))
        if any(type(field(item, "Score")) is not int for item in response or []):
            raise ExtenderError("json: cannot unmarshal a Score into a Go value of type int64")
        scale = self._config["weight"] * (MAX_NODE_SCORE // MAX_EXTENDER_PRIORITY)
        return {field(item, "Host"): field(item, "Score") * scale for item in response or []}

    def bind(self, pod: Json, node: str) -> None:
        metadata = pod["metadata"]
        response = self._send(
            "bindVerb",
            {
                "PodName": metadata["name"],
                "PodNamespace": metadata["namespace"],
                "PodUID": metadata["uid"],
                "Node": node,
            },
        )
        if error := field(response, "Error"):
            raise ExtenderError(error)

    def preempt(self, pod: Json, victims: dict[str, list[Json]]) -> dict[str, list[str]]:
        """Return the uids of accepted victims by node.

        The response has only NodeNameToMetaVictims, even if the request has complete pods.
        """
        arguments: Json = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": None}
        if self._by_name:
            arguments["NodeNameToMetaVictims"] = {
                node: {
                    "Pods": [{"UID": victim["metadata"]["uid"]} for victim in pods],
                    "NumPDBViolations": 0,
                }
                for node, pods in victims.items()
            }
        else:
            arguments["NodeNameToVictims"] = {
                node: {"Pods": pods, "NumPDBViolations": 0} for node, pods in victims.items()
            }
        response = field(self._send("preemptVerb", arguments), "NodeNameToMetaVictims") or {}
        return {
            node: [field(victim, "UID") for victim in field(on_node, "Pods") or []]
            for node, on_node in response.items()
        }

    def _arguments(self, pod: Json, nodes: list[Json]) -> Json:
        """Return ExtenderArgs with names or complete nodes; the other field is null."""
        names = [node["metadata"]["name"] for node in nodes]
        return {
            "Pod": pod,
            "Nodes": None if self._by_name else {"metadata": {}, "items": nodes},
            "NodeNames": names if self._by_name else None,
        }

    def _send(self, verb: str, arguments: Json) -> Any:
        url = f"{self.name.rstrip('/')}/{self._config[verb]}"
        timeout_s = self._timeout_s or DEFAULT_TIMEOUT_S
        try:
            return call(
                "POST", url, arguments, timeout_s=timeout_s, expected=range(200, 201),
                tls=self._tls,
            )  # fmt: skip
        except HttpError as error:
            raise ExtenderError(str(error)) from error
