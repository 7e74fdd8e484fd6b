"""A stand-in of kube-scheduler: one pod at a time, by priority and then by age.

It decides by the filter plugins in `node_fit.py` and by extenders, in the order and with the
arguments of kubernetes/kubernetes pkg/scheduler (schedule_one.go, framework/preemption). It has
no score plugins, queues nor back-off: every step looks at every waiting pod.
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
from tests.schedulers.kubernetes.kube_scheduler.node_fit import Unfit, unfit
from tests.schedulers.kubernetes.kube_scheduler.preemption import Victims, best, victims_on

STRATEGIC = "application/strategic-merge-patch+json"
TIMEOUT_S = 5.0
BETWEEN_STEPS_S = 0.05


class Bound(NamedTuple):
    namespace: str
    pod: str
    node: str


class KubeScheduler:
    """Schedules the pods of one API server; in the background between ``with`` and its end.

    Parameters
    ----------
    url : str
        Of the API server.
    extenders : iterable of dict
        As in a KubeSchedulerConfiguration.
    scheduler_names : tuple of str
        Pods with another spec.schedulerName are left alone.
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
        """By a KubeSchedulerConfiguration, as read from its YAML."""
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
        while not self._stopping.wait(BETWEEN_STEPS_S):
            try:
                self.step()
            except HttpError:
                continue  # as the real one does, it goes on until the API server answers again
            except Exception as error:
                self._error = error
                return

    def step(self) -> list[Bound]:
        """Try every waiting pod once; those that were bound, in that order."""
        nodes = self._api("GET", "/api/v1/nodes")["items"]
        pods = self._api("GET", "/api/v1/pods")["items"]
        waiting = [pod for pod in pods if self._waits(pod)]
        waiting.sort(key=lambda pod: (-pod["spec"]["priority"], *_age(pod)))
        bound = []
        for pod in waiting:
            node = self._schedule(pod, nodes, pods)
            if node is not None:
                pod["spec"]["nodeName"] = node
                bound.append(Bound(pod["metadata"]["namespace"], pod["metadata"]["name"], node))
        return bound

    def _waits(self, pod: Json) -> bool:
        spec = pod["spec"]
        return (
            not spec.get("nodeName")
            and not spec.get("schedulingGates")
            and spec["schedulerName"] in self._names
            and "deletionTimestamp" not in pod["metadata"]
            and pod["status"]["phase"] == "Pending"
        )

    def _schedule(self, pod: Json, nodes: list[Json], pods: list[Json]) -> str | None:
        """The node that the pod was bound to; else its status says why there is none."""
        try:
            fitting, unfitting = self._filtered(pod, nodes, pods)
            if fitting:
                node = self._chosen(pod, fitting)
                self._bind(pod, node)
                return node
        except (ExtenderError, HttpError) as error:
            self._say(pod, "SchedulerError", str(error))
            return None
        reasons = Counter(why.message for why in unfitting.values())
        said = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        message = f"0/{len(nodes)} nodes are available: {said}."
        try:
            nominated = self._preempt(pod, nodes, pods, unfitting)
        except (ExtenderError, HttpError) as error:
            nominated = None
            message += f" preemption: {error}"
        self._say(pod, "Unschedulable", message, nominated)
        return None

    def _filtered(
        self, pod: Json, nodes: list[Json], pods: list[Json]
    ) -> tuple[list[Json], dict[str, Unfit]]:
        """The nodes that are left, and of the others why not.

        The node that was nominated when others were preempted comes first, and alone.
        """
        nominated = pod["status"].get("nominatedNodeName")
        alone = [node for node in nodes if node["metadata"]["name"] == nominated]
        if alone:
            try:
                fitting, _ = self._passing(pod, alone, pods)
            except ExtenderError:
                fitting = []
            if fitting:
                return fitting, {}
        return self._passing(pod, nodes, pods)

    def _passing(
        self, pod: Json, nodes: list[Json], pods: list[Json]
    ) -> tuple[list[Json], dict[str, Unfit]]:
        fitting, unfitting = [], {}
        for node in sorted(nodes, key=lambda node: node["metadata"]["name"]):
            name = node["metadata"]["name"]
            why = unfit(pod, node, beside(pod, name, pods), self._ignored)
            if why is None:
                fitting.append(node)
            else:
                unfitting[name] = why
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
            unfitting |= {n: Unfit(why, True) for n, why in filtered.failed.items()}
            unfitting |= {n: Unfit(why, False) for n, why in filtered.failed_for_good.items()}
        return fitting, unfitting

    def _chosen(self, pod: Json, nodes: list[Json]) -> str:
        """The highest score, and of equal ones the first name; a single node is not scored."""
        names = [node["metadata"]["name"] for node in nodes]
        if len(names) == 1:
            return str(names[0])
        total: Counter[str] = Counter()
        for extender in self._extenders:
            if extender.is_interested(pod):
                try:
                    total.update(extender.scores(pod, nodes))
                except ExtenderError:
                    continue  # whether it is ignorable or not: it has no say in the order
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
        self, pod: Json, nodes: list[Json], pods: list[Json], unfitting: dict[str, Unfit]
    ) -> str | None:
        """Delete pods of lower priority on one node, and name the node; None where it is no use."""
        if pod["spec"]["preemptionPolicy"] == "Never":
            return None
        priority = pod["spec"]["priority"]
        nominated = pod["status"].get("nominatedNodeName")
        if nominated and any(
            other["spec"]["priority"] < priority and "deletionTimestamp" in other["metadata"]
            for other in beside(pod, nominated, pods)
        ):
            return str(nominated)  # those it preempted are still on their way out
        candidates: Victims = {}
        for node in nodes:
            name = node["metadata"]["name"]
            if name in unfitting and unfitting[name].resolvable:
                found = victims_on(node, pod, beside(pod, name, pods), self._ignored)
                if found:
                    candidates[name] = found
        for extender in self._extenders:
            if candidates and extender.preempts and extender.is_interested(pod):
                candidates = self._agreed(extender, pod, candidates, pods)
        if not candidates:
            return None
        chosen = best(candidates)
        for victim in candidates[chosen]:
            if "deletionTimestamp" not in victim["metadata"]:
                said = f"{self._names[0]}: preempting to accommodate a higher priority pod"
                condition = {"type": "DisruptionTarget", "status": "True"}
                condition |= {"reason": "PreemptionByScheduler", "message": said}
                self._patch_status(victim, {"conditions": [condition]})
                self._api("DELETE", _path(victim))
        for other in pods:
            same = other["status"].get("nominatedNodeName") == chosen
            if same and self._waits(other) and other["spec"]["priority"] < priority:
                self._patch_status(other, {"nominatedNodeName": None})
        return chosen

    def _agreed(
        self, extender: Extender, pod: Json, candidates: Victims, pods: list[Json]
    ) -> Victims:
        try:
            answer = extender.preempt(pod, candidates)
        except ExtenderError:
            if extender.ignorable:
                return candidates
            raise
        agreed: Victims = {}
        for node, uids in answer.items():
            here = {p["metadata"]["uid"]: p for p in pods if p["spec"].get("nodeName") == node}
            if missing := [uid for uid in uids if uid not in here]:
                raise ExtenderError(f"{extender.name} would preempt {missing}, not on {node}")
            if uids:
                agreed[node] = [here[uid] for uid in uids]
            elif not extender.ignorable:
                raise ExtenderError(f"expected at least one victim pod on node {node}")
        return agreed

    def _say(self, pod: Json, reason: str, message: str, nominated: str | None = None) -> None:
        """Write why the pod waits, where that is new."""
        condition = {"type": "PodScheduled", "status": "False", "reason": reason}
        condition["message"] = message
        had = [c for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"]
        known = bool(had) and condition.items() <= had[0].items()
        status: Json = {} if known else {"conditions": [condition]}
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


def beside(pod: Json, node: str, pods: list[Json]) -> list[Json]:
    """Pods that take room on a node: those on it, and those as urgent that are nominated to it."""
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
