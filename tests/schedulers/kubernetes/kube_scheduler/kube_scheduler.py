"""Fake kube-scheduler: schedules one pod at a time, by priority and age.

It uses the filter plugins in `node_fit.py` and extenders, in the order and with the arguments of
kubernetes/kubernetes pkg/scheduler (schedule_one.go, framework/preemption). It has no score
plugins, queues or back-off: each step tries every pending pod.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple, Self

from tests.schedulers.kubernetes.api_server.statuses import Json
from tests.schedulers.kubernetes.kube_scheduler.extender import Extender, ExtenderError
from tests.schedulers.kubernetes.kube_scheduler.json_http import HttpError, call
from tests.schedulers.kubernetes.kube_scheduler.node_fit import Rejection, reject
from tests.schedulers.kubernetes.kube_scheduler.preemption import Victims, pick_node, select_victims

STRATEGIC = "application/strategic-merge-patch+json"
TIMEOUT_S = 5.0
STEP_INTERVAL_S = 0.05


class Binding(NamedTuple):
    namespace: str
    pod: str
    node: str


class KubeScheduler:
    """Scheduler of one API server; inside ``with`` it runs in the background.

    Parameters
    ----------
    url : str
        URL of the API server.
    extenders : iterable of dict
        Entries of ``extenders`` in a KubeSchedulerConfiguration.
    scheduler_names : tuple of str
        Pods with another spec.schedulerName are ignored.
    """

    def __init__(
        self,
        url: str,
        extenders: Iterable[Json] = (),
        scheduler_names: tuple[str, ...] = ("default-scheduler",),
    ) -> None:
        self._url = url
        self._extenders = [Extender(config) for config in extenders]
        if sum(extender.binds for extender in self._extenders) > 1:
            raise ValueError("only one extender can implement bind")
        self._ignored = frozenset().union(*(e.ignored_resources for e in self._extenders))
        self._names = scheduler_names
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kube-scheduler")
        self._error: Exception | None = None

    @classmethod
    def configured(cls, url: str, configuration: Json) -> Self:
        """Return a scheduler with a KubeSchedulerConfiguration, parsed from YAML."""
        if configuration.get("kind") != "KubeSchedulerConfiguration":
            raise ValueError("kind: KubeSchedulerConfiguration is missing")
        profiles = configuration.get("profiles") or [{}]
        names = tuple(profile.get("schedulerName", "default-scheduler") for profile in profiles)
        return cls(url, configuration.get("extenders") or (), names)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        while not self._stopping.wait(STEP_INTERVAL_S):
            try:
                self.step()
            except HttpError:
                continue  # like the real one, it retries until the API server responds
            except Exception as error:
                self._error = error
                return

    def step(self) -> list[Binding]:
        """Try every pending pod once; return the bindings in order."""
        nodes = self._api("GET", "/api/v1/nodes")["items"]
        pods = self._api("GET", "/api/v1/pods")["items"]
        pending = [pod for pod in pods if self._is_pending(pod)]
        pending.sort(key=lambda pod: (-pod["spec"]["priority"], *_age(pod)))
        bound = []
        for pod in pending:
            node = self._schedule(pod, nodes, pods)
            if node is not None:
                pod["spec"]["nodeName"] = node
                bound.append(Binding(pod["metadata"]["namespace"], pod["metadata"]["name"], node))
        return bound

    def _is_pending(self, pod: Json) -> bool:
        spec = pod["spec"]
        return (
            not spec.get("nodeName")
            and not spec.get("schedulingGates")
            and spec["schedulerName"] in self._names
            and "deletionTimestamp" not in pod["metadata"]
            and pod["status"]["phase"] == "Pending"
        )

    def _schedule(self, pod: Json, nodes: list[Json], pods: list[Json]) -> str | None:
        """Bind a pod and return its node; otherwise write the reason to its status."""
        try:
            fitting, rejections = self._filter(pod, nodes, pods)
            if fitting:
                node = self._select_node(pod, fitting)
                self._bind(pod, node)
                return node
        except (ExtenderError, HttpError) as error:
            self._set_condition(pod, "SchedulerError", str(error))
            return None
        reasons = Counter(rejection.message for rejection in rejections.values())
        text = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        message = f"0/{len(nodes)} nodes are available: {text}."
        try:
            nominated = self._preempt(pod, nodes, pods, rejections)
        except (ExtenderError, HttpError) as error:
            nominated = None
            message += f" preemption: {error}"
        self._set_condition(pod, "Unschedulable", message, nominated)
        return None

    def _filter(
        self, pod: Json, nodes: list[Json], pods: list[Json]
    ) -> tuple[list[Json], dict[str, Rejection]]:
        """Return the nodes that fit, and the rejections of the others.

        The nominated node of a preemption is tried first, before any other.
        """
        nominated = pod["status"].get("nominatedNodeName")
        only_nominated = [node for node in nodes if node["metadata"]["name"] == nominated]
        if only_nominated:
            try:
                fitting, _ = self._filter_nodes(pod, only_nominated, pods)
            except ExtenderError:
                fitting = []
            if fitting:
                return fitting, {}
        return self._filter_nodes(pod, nodes, pods)

    def _filter_nodes(
        self, pod: Json, nodes: list[Json], pods: list[Json]
    ) -> tuple[list[Json], dict[str, Rejection]]:
        fitting, rejections = [], {}
        for node in sorted(nodes, key=lambda node: node["metadata"]["name"]):
            name = node["metadata"]["name"]
            rejection = reject(pod, node, pods_on_node(pod, name, pods), self._ignored)
            if rejection is None:
                fitting.append(node)
            else:
                rejections[name] = rejection
        for extender in self._extenders:
            if not fitting:
                break
            if not extender.is_interested(pod):
                continue
            try:
                filtered = extender.filter(pod, fitting)
            except ExtenderError:
                if extender.ignorable:
                    continue
                raise
            fitting = filtered.nodes
            rejections |= {n: Rejection(text, True) for n, text in filtered.failed.items()}
            rejections |= {n: Rejection(text, False) for n, text in filtered.unresolvable.items()}
        return fitting, rejections

    def _select_node(self, pod: Json, nodes: list[Json]) -> str:
        """Return the node with the best score, then the first name; do not score a single node."""
        names = [node["metadata"]["name"] for node in nodes]
        if len(names) == 1:
            return str(names[0])
        total: Counter[str] = Counter()
        for extender in self._extenders:
            if extender.is_interested(pod):
                try:
                    total.update(extender.scores(pod, nodes))
                except ExtenderError:
                    continue  # ignorable or not, its scores are skipped
        return str(min(names, key=lambda name: (-total[name], name)))

    def _bind(self, pod: Json, node: str) -> None:
        for extender in self._extenders:
            if extender.binds and extender.is_interested(pod):
                try:
                    extender.bind(pod, node)
                except ExtenderError:
                    if extender.ignorable:
                        continue
                    raise
                return
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        self._api("POST", f"{_path(pod)}/binding", binding)

    def _preempt(
        self, pod: Json, nodes: list[Json], pods: list[Json], rejections: dict[str, Rejection]
    ) -> str | None:
        """Delete pods of lower priority on one node; return the node, or None if none helps."""
        if pod["spec"]["preemptionPolicy"] == "Never":
            return None
        priority = pod["spec"]["priority"]
        nominated = pod["status"].get("nominatedNodeName")
        if nominated and any(
            other["spec"]["priority"] < priority and "deletionTimestamp" in other["metadata"]
            for other in pods_on_node(pod, nominated, pods)
        ):
            return str(nominated)  # its victims are still terminating
        candidates: Victims = {}
        for node in nodes:
            name = node["metadata"]["name"]
            if name in rejections and rejections[name].resolvable:
                found = select_victims(node, pod, pods_on_node(pod, name, pods), self._ignored)
                if found:
                    candidates[name] = found
        for extender in self._extenders:
            if candidates and extender.preempts and extender.is_interested(pod):
                candidates = self._filter_victims(extender, pod, candidates, pods)
        if not candidates:
            return None
        chosen = pick_node(candidates)
        for victim in candidates[chosen]:
            if "deletionTimestamp" not in victim["metadata"]:
                text = f"{self._names[0]}: preempting to accommodate a higher priority pod"
                condition = {"type": "DisruptionTarget", "status": "True"}
                condition |= {"reason": "PreemptionByScheduler", "message": text}
                self._patch_status(victim, {"conditions": [condition]})
                self._api("DELETE", _path(victim))
        for other in pods:
            same = other["status"].get("nominatedNodeName") == chosen
            if same and self._is_pending(other) and other["spec"]["priority"] < priority:
                self._patch_status(other, {"nominatedNodeName": None})
        return chosen

    def _filter_victims(
        self, extender: Extender, pod: Json, candidates: Victims, pods: list[Json]
    ) -> Victims:
        try:
            answer = extender.preempt(pod, candidates)
        except ExtenderError:
            if extender.ignorable:
                return candidates
            raise
        accepted: Victims = {}
        for node, uids in answer.items():
            on_node = {p["metadata"]["uid"]: p for p in pods if p["spec"].get("nodeName") == node}
            if missing := [uid for uid in uids if uid not in on_node]:
                raise ExtenderError(f"{extender.name} would preempt {missing}, not on {node}")
            if uids:
                accepted[node] = [on_node[uid] for uid in uids]
            elif not extender.ignorable:
                raise ExtenderError(f"expected at least one victim pod on node {node}")
        return accepted

    def _set_condition(
        self, pod: Json, reason: str, message: str, nominated: str | None = None
    ) -> None:
        """Write why a pod is pending, if that has changed."""
        condition = {"type": "PodScheduled", "status": "False", "reason": reason}
        condition["message"] = message
        existing = [c for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"]
        is_unchanged = bool(existing) and condition.items() <= existing[0].items()
        status: Json = {} if is_unchanged else {"conditions": [condition]}
        if nominated is not None and pod["status"].get("nominatedNodeName") != nominated:
            status["nominatedNodeName"] = nominated
            pod["status"]["nominatedNodeName"] = nominated
        if status:
            self._patch_status(pod, status)

    def _patch_status(self, pod: Json, status: Json) -> None:
        try:
            self._api("PATCH", f"{_path(pod)}/status", {"status": status})
        except HttpError as error:
            if error.code != 404:  # deleted meanwhile
                raise

    def _api(self, method: str, path: str, body: Json | None = None) -> Json:
        kind = STRATEGIC if method == "PATCH" else "application/json"
        answer: Json = call(method, self._url + path, body, timeout_s=TIMEOUT_S, content_type=kind)
        return answer


def pods_on_node(pod: Json, node: str, pods: list[Json]) -> list[Json]:
    """Return pods that count for a node: bound to it, or nominated with at least that priority."""
    return [
        other
        for other in pods
        if other["status"]["phase"] not in ("Succeeded", "Failed")
        and other["metadata"]["uid"] != pod["metadata"]["uid"]
        and (
            other["spec"].get("nodeName") == node
            or (
                not other["spec"].get("nodeName")
                and other["status"].get("nominatedNodeName") == node
                and other["spec"]["priority"] >= pod["spec"]["priority"]
            )
        )
    ]


def _age(pod: Json) -> tuple[str, str, str]:
    metadata = pod["metadata"]
    return metadata["creationTimestamp"], metadata["namespace"], metadata["name"]


def _path(pod: Json) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
