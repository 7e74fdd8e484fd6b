"""Does what the gate decided: every write says what it expects to find, and is refused else."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from kubernetes.client import ApiClient, ApiException, CoreV1Api, CustomObjectsApi

from presage.schedulers.kubernetes.api.cache import Kind
from presage.schedulers.kubernetes.api.refusals import said
from presage.schedulers.kubernetes.gate.annotations import moment
from presage.schedulers.kubernetes.gate.writes import Annotate, Delete, Release, Say, Write, subject
from presage.schedulers.kubernetes.kubernetes_names import (
    BIND_BY,
    DEVICES,
    GATE,
    POD_GROUP_GROUP,
    POD_GROUP_LABEL,
    POD_GROUP_PLURAL,
    POD_GROUP_VERSION,
)
from presage.schedulers.kubernetes.pods import name_of
from presage.schedulers.kubernetes.snapshot import Json
from presage.serving.server.log import log

_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
_STALE = (404, 409, 422)  # it is gone, was written meanwhile, or is not as was expected
_COMPONENT = "presage-gate"
_MOST_SAID = 4096


class Writer:
    """For one API server.

    Parameters
    ----------
    api : kubernetes.client.ApiClient
        Whose connections are used.
    seen : callable
        Given the kind of what was written, and what it is now.
    """

    def __init__(self, api: ApiClient, seen: Callable[[Kind, Json], None]) -> None:
        self._seen = seen
        self._core, self._custom = CoreV1Api(api), CustomObjectsApi(api)
        self._said: dict[tuple[str, str], str] = {}

    def write(self, write: Write) -> bool:
        """Whether it was done, or was done before; False where the cluster is not as was thought.

        Raises
        ------
        kubernetes.client.ApiException, urllib3.exceptions.HTTPError
            The API server did not do it, and may later.
        """
        if isinstance(write, Say):
            self._say(write)
            return True
        try:
            if isinstance(write, Annotate):
                self._annotate(write)
            elif isinstance(write, Release):
                self._release(write)
            else:
                self._delete(write)
        except ApiException as error:
            if error.status in _STALE:
                log(logging.INFO, "not written, as it is otherwise by now", error=said(error))
                return False
            raise
        return True

    def look_again(self, write: Write) -> None:
        """Ask the API server for a pod, or all of a PodGroup, whatever a watch has told.

        Raises
        ------
        kubernetes.client.ApiException, urllib3.exceptions.HTTPError
            It does not tell.
        """
        namespace, name = name_of(subject(write))
        which = (
            {"label_selector": f"{POD_GROUP_LABEL}={name}"}
            if isinstance(write, Annotate)
            else {"field_selector": f"metadata.name={name}"}
        )
        answer = self._core.list_namespaced_pod(namespace, **which, _preload_content=False)
        for pod in _read(answer)["items"]:
            self._seen("Pod", {"apiVersion": "v1", "kind": "Pod", **pod})

    def _annotate(self, write: Annotate) -> None:
        namespace, name = name_of(write.group)
        metadata = {
            "resourceVersion": write.group["metadata"]["resourceVersion"],
            "annotations": dict(write.annotations),
        }
        written = self._custom.patch_namespaced_custom_object(
            POD_GROUP_GROUP, POD_GROUP_VERSION, namespace, POD_GROUP_PLURAL, name,
            {"metadata": metadata}, _content_type=_MERGE_PATCH,
        )  # fmt: skip
        self._seen("PodGroup", written)

    def _release(self, write: Release) -> None:
        """Affinity, annotations and gate in one write: nobody sees a pod free and anywhere."""
        pod = write.pod
        namespace, name = name_of(pod)
        gates = [gate["name"] for gate in pod["spec"]["schedulingGates"]]
        metadata = pod["metadata"]
        annotations = {**(metadata.get("annotations") or {}), BIND_BY: moment(write.bind_by_s)}
        if write.devices:
            annotations[DEVICES] = write.devices
        patch: list[Json] = [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
            {
                "op": "test",
                "path": "/metadata/resourceVersion",
                "value": metadata["resourceVersion"],
            },
            {"op": "add", "path": "/metadata/annotations", "value": annotations},
            {"op": "remove", "path": f"/spec/schedulingGates/{gates.index(GATE)}"},
        ]
        if write.node:
            affinity = tightened(pod["spec"].get("affinity"), write.node)
            patch.append({"op": "add", "path": "/spec/affinity", "value": affinity})
        answer = self._core.patch_namespaced_pod(
            name, namespace, patch, _content_type=_JSON_PATCH, _preload_content=False
        )
        self._seen("Pod", _read(answer))

    def _delete(self, write: Delete) -> None:
        namespace, name = name_of(write.pod)
        self._say(Say(write.pod, "Deleted", f"{write.why}; its owner creates it anew", warns=True))
        answer = self._core.delete_namespaced_pod(
            name, namespace, body={"preconditions": {"uid": write.pod["metadata"]["uid"]}},
            _preload_content=False,
        )  # fmt: skip
        told = _read(answer)
        if "deletionTimestamp" in (told.get("metadata") or {}):
            self._seen("Pod", told)

    def _say(self, say: Say) -> None:
        """As an event, once: what is said is of no use to the gate, which goes on without."""
        about = say.about["metadata"]
        if self._said.get((about["uid"], say.reason)) == say.message:
            return
        is_group = say.about.get("kind") == "PodGroup"
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        event = {
            "metadata": {"generateName": f"{about['name']}.", "namespace": about["namespace"]},
            "involvedObject": {
                "apiVersion": f"{POD_GROUP_GROUP}/{POD_GROUP_VERSION}" if is_group else "v1",
                "kind": "PodGroup" if is_group else "Pod",
                "name": about["name"],
                "namespace": about["namespace"],
                "uid": about["uid"],
            },
            "reason": say.reason,
            "message": say.message[:1024],
            "type": "Warning" if say.warns else "Normal",
            "source": {"component": _COMPONENT},
            "reportingComponent": _COMPONENT,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        log(
            logging.WARNING if say.warns else logging.INFO, say.message,
            reason=say.reason, about=f"{about['namespace']}/{about['name']}",
        )  # fmt: skip
        try:
            self._core.create_namespaced_event(about["namespace"], event, _preload_content=False)
        except ApiException as error:
            log(logging.WARNING, "an event was not created", status=error.status)
            return
        if len(self._said) >= _MOST_SAID:
            self._said.clear()
        self._said[about["uid"], say.reason] = say.message


def tightened(affinity: Json | None, node: str) -> Json:
    """An affinity with which a pod goes to a node, or nowhere.

    Of a gated pod nothing may be taken away, and requirements may be added alone to terms that
    have some: an empty one is none that any node meets
    (https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/).
    """
    affinity = dict(affinity or {})
    of_node = dict(affinity.get("nodeAffinity") or {})
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    only: Json = {"key": "metadata.name", "operator": "In", "values": [node]}
    of_pod: list[dict[str, Any]] = (of_node.get(key) or {}).get("nodeSelectorTerms") or []
    terms = of_pod or [{}]
    of_node[key] = {
        "nodeSelectorTerms": [
            {**term, "matchFields": [*(term.get("matchFields") or ()), only]}
            if not of_pod or any(term.values())
            else term
            for term in terms
        ]
    }
    return {**affinity, "nodeAffinity": of_node}


def _read(answer: Any) -> Json:
    read: Json = json.loads(answer.data)
    return read
