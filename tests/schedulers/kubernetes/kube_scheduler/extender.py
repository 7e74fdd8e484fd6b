"""A scheduler extender as kube-scheduler calls it.

References
----------
kubernetes/kubernetes: staging/src/k8s.io/kube-scheduler/extender/v1/types.go (its fields have no
JSON tags, so they are sent in Go's spelling: `Pod`, `NodeNames`; answers are read in any case) and
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
    """It cannot be reached, says that it failed, or says what cannot be."""


@dataclass(frozen=True)
class Filtered:
    """What an extender left, and why it took the others away, by node."""

    nodes: list[Json]
    failed: dict[str, str]
    failed_for_good: dict[str, str]


def duration_s(text: str) -> float:
    """Of a Go duration: "30s", "1m30s", "100ms"."""
    parts = re.findall(r"([\d.]+)(ms|s|m|h)", text)
    if "".join(number + unit for number, unit in parts) != text or not parts:
        raise ValueError(f"httpTimeout: {text!r} is no duration such as 30s")
    return sum(float(number) * UNITS_S[unit] for number, unit in parts)


def field(answer: Any, name: str) -> Any:
    """A field as Go's decoder finds it, whatever its case; None where it is not there."""
    if not isinstance(answer, dict):
        raise ExtenderError(f"json: cannot unmarshal {answer!r} into a Go struct")
    return next((v for k, v in answer.items() if k.lower() == name.lower()), None)


def tls_of(config: Json) -> ssl.SSLContext | None:
    """Of `tlsConfig`, as extender.go's makeTransport reads it; None where there is none."""
    files = config.get("tlsConfig")
    if files is None:
        if config.get("enableHTTPS"):
            raise ValueError("extender: enableHTTPS without a CA trusts any server; not done here")
        return None
    if files.keys() != {"certFile", "keyFile", "caFile"}:
        raise ValueError(f"extender: tlsConfig {sorted(files)} not understood here")
    context = ssl.create_default_context(cafile=files["caFile"])
    context.load_cert_chain(files["certFile"], files["keyFile"])
    return context


class Extender:
    """One entry of `extenders` in a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1)."""

    def __init__(self, config: Json) -> None:
        if unknown := config.keys() - KEYS:
            raise ValueError(f"extender: {sorted(unknown)} not understood here")
        if config.get("prioritizeVerb") and config.get("weight", 0) <= 0:
            raise ValueError("extender: a prioritizer needs a positive weight")
        self._config = config
        self._timeout_s = duration_s(config["httpTimeout"]) if config.get("httpTimeout") else 0.0
        self._tls = tls_of(config)
        self.name: str = config["urlPrefix"]
        self.ignorable = bool(config.get("ignorable"))
        self.binds = bool(config.get("bindVerb"))
        self.preempts = bool(config.get("preemptVerb"))
        self._by_name = bool(config.get("nodeCacheCapable"))
        managed = config.get("managedResources", [])
        self._managed = {resource["name"] for resource in managed}
        self.ignored_resources = {r["name"] for r in managed if r.get("ignoredByScheduler")}

    def is_interested(self, pod: Json) -> bool:
        """Where it manages resources, only in pods that ask for one of them."""
        spec = pod["spec"]
        amounts = [
            container.get("resources", {}).get(kind, {})
            for container in [*spec["containers"], *spec.get("initContainers", [])]
            for kind in ("requests", "limits")
        ]
        return not self._managed or any(self._managed & amount.keys() for amount in amounts)

    def filter(self, pod: Json, nodes: list[Json]) -> Filtered:
        if not self._config.get("filterVerb"):
            return Filtered(nodes, {}, {})
        answer = self._send("filterVerb", self._arguments(pod, nodes))
        if said := field(answer, "Error"):
            raise ExtenderError(said)
        left: list[Json] = []
        names, full = field(answer, "NodeNames"), field(answer, "Nodes")
        if self._by_name and names is not None:
            known = {node["metadata"]["name"]: node for node in nodes}
            if unknown := [name for name in names if name not in known]:
                raise ExtenderError(
                    f"{self.name} claims filtered nodes {unknown}, not in its input"
                )
            left = [known[name] for name in names]
        elif full is not None:
            left = full.get("items") or []
        return Filtered(
            left,
            field(answer, "FailedNodes") or {},
            field(answer, "FailedAndUnresolvableNodes") or {},
        )

    def scores(self, pod: Json, nodes: list[Json]) -> dict[str, int]:
        """By node, weighted, and scaled from 10 to the scheduler's own 100."""
        if not self._config.get("prioritizeVerb"):
            return {}
        answer = self._send("prioritizeVerb", self._arguments(pod, nodes))
        if any(type(field(item, "Score")) is not int for item in answer or []):
            raise ExtenderError("json: cannot unmarshal a Score into a Go value of type int64")
        scale = self._config["weight"] * (MAX_NODE_SCORE // MAX_EXTENDER_PRIORITY)
        return {field(item, "Host"): field(item, "Score") * scale for item in answer or []}

    def bind(self, pod: Json, node: str) -> None:
        metadata = pod["metadata"]
        answer = self._send(
            "bindVerb",
            {
                "PodName": metadata["name"],
                "PodNamespace": metadata["namespace"],
                "PodUID": metadata["uid"],
                "Node": node,
            },
        )
        if said := field(answer, "Error"):
            raise ExtenderError(said)

    def preempt(self, pod: Json, victims: dict[str, list[Json]]) -> dict[str, list[str]]:
        """Uids of the victims it agrees to, by node.

        Its answer has only NodeNameToMetaVictims, even where it was asked with whole pods.
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
        answer = field(self._send("preemptVerb", arguments), "NodeNameToMetaVictims") or {}
        return {
            node: [field(victim, "UID") for victim in field(given, "Pods") or []]
            for node, given in answer.items()
        }

    def _arguments(self, pod: Json, nodes: list[Json]) -> Json:
        """ExtenderArgs: either names or whole nodes, the other null."""
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
