"""Writer of the gate's decisions; each write has preconditions, and fails if they do not hold."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from kubernetes.client import ApiClient, ApiException, CoreV1Api, CustomObjectsApi

from presage.schedulers.kubernetes.api.api_errors import describe_error
from presage.schedulers.kubernetes.api.cache import Kind
from presage.schedulers.kubernetes.gate.annotations import format_time
from presage.schedulers.kubernetes.gate.writes import (
    Annotate,
    Delete,
    EmitEvent,
    Release,
    Write,
    involved_object,
)
from presage.schedulers.kubernetes.kubernetes_names import (
    BIND_DEADLINE,
    DEVICES,
    GATE,
    POD_GROUP_GROUP,
    POD_GROUP_LABEL,
    POD_GROUP_PLURAL,
    POD_GROUP_VERSION,
)
from presage.schedulers.kubernetes.pods import namespaced_name, scheduling_gates
from presage.schedulers.kubernetes.snapshot import Json
from presage.serving.server.log import log

_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
_CONFLICT = (404, 409, 422)  # deleted, changed meanwhile, or not as expected
_COMPONENT = "presage-gate"
_MAX_REMEMBERED_EVENTS = 4096


class Writer:
    """Writer to one API server.

    Parameters
    ----------
    api : kubernetes.client.ApiClient
        Client whose connections are used.
    on_written : callable
        Called with the kind of a written object, and its new state.
    """

    def __init__(self, api: ApiClient, on_written: Callable[[Kind, Json], None]) -> None:
        self._on_written = on_written
        self._core, self._custom = CoreV1Api(api), CustomObjectsApi(api)
        self._messages: dict[tuple[str, str], str] = {}  # of events, by uid and reason

    def write(self, write: Write) -> bool:
        """Perform a write; return False if the object is not in the expected state.

        Raises
        ------
        kubernetes.client.ApiException, urllib3.exceptions.HTTPError
            The write failed; a retry may succeed.
        """
        if isinstance(write, EmitEvent):
            self._emit_event(write)
            return True
        try:
            if isinstance(write, Annotate):
                self._annotate(write)
            elif isinstance(write, Release):
                self._release(write)
            else:
                self._delete(write)
        except ApiException as error:
            if error.status in _CONFLICT:
                log(logging.INFO, "not written: the object changed", error=describe_error(error))
                return False
            raise
        return True

    def refresh(self, write: Write) -> None:
        """Read the pod, or all pods of the PodGroup, from the API server instead of the cache.

        Raises
        ------
        kubernetes.client.ApiException, urllib3.exceptions.HTTPError
            The pods cannot be read.
        """
        namespace, name = namespaced_name(involved_object(write))
        selector = (
            {"label_selector": f"{POD_GROUP_LABEL}={name}"}
            if isinstance(write, Annotate)
            else {"field_selector": f"metadata.name={name}"}
        )
        response = self._core.list_namespaced_pod(namespace, **selector, _preload_content=False)
        for pod in _parse(response)["items"]:
            self._on_written("Pod", {"apiVersion": "v1", "kind": "Pod", **pod})

    def _annotate(self, write: Annotate) -> None:
        namespace, name = namespaced_name(write.group)
        metadata = {
            "resourceVersion": write.group["metadata"]["resourceVersion"],
            "annotations": dict(write.annotations),
        }
        written = self._custom.patch_namespaced_custom_object(
            POD_GROUP_GROUP, POD_GROUP_VERSION, namespace, POD_GROUP_PLURAL, name,
            {"metadata": metadata}, _content_type=_MERGE_PATCH,
        )  # fmt: skip
        self._on_written("PodGroup", written)

    def _release(self, write: Release) -> None:
        """Write affinity, annotations and gate at once: no pod is ungated without its affinity."""
        pod = write.pod
        namespace, name = namespaced_name(pod)
        gate_index = scheduling_gates(pod).index(GATE)
        metadata = pod["metadata"]
        annotations = {
            **(metadata.get("annotations") or {}),
            BIND_DEADLINE: format_time(write.bind_deadline_s),
        }
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
            {"op": "remove", "path": f"/spec/schedulingGates/{gate_index}"},
        ]
        if write.node:
            affinity = pin_affinity(pod["spec"].get("affinity"), write.node)
            patch.append({"op": "add", "path": "/spec/affinity", "value": affinity})
        response = self._core.patch_namespaced_pod(
            name, namespace, patch, _content_type=_JSON_PATCH, _preload_content=False
        )
        self._on_written("Pod", _parse(response))

    def _delete(self, write: Delete) -> None:
        namespace, name = namespaced_name(write.pod)
        message = f"{write.message}; its controller recreates it"
        self._emit_event(EmitEvent(write.pod, "Deleted", message, is_warning=True))
        response = self._core.delete_namespaced_pod(
            name, namespace, body={"preconditions": {"uid": write.pod["metadata"]["uid"]}},
            _preload_content=False,
        )  # fmt: skip
        pod = _parse(response)
        if "deletionTimestamp" in (pod.get("metadata") or {}):
            self._on_written("Pod", pod)

    def _emit_event(self, write: EmitEvent) -> None:
        """Create an event unless it repeats the last one; only log a failure to create it."""
        regarding = write.regarding["metadata"]
        if self._messages.get((regarding["uid"], write.reason)) == write.message:
            return
        log(
            logging.WARNING if write.is_warning else logging.INFO, write.message,
            reason=write.reason, about=f"{regarding['namespace']}/{regarding['name']}",
        )  # fmt: skip
        event = _event(write, datetime.now(UTC))
        try:
            self._core.create_namespaced_event(
                regarding["namespace"], event, _preload_content=False
            )
        except ApiException as error:
            log(logging.WARNING, "event not created", status=error.status)
            return
        if len(self._messages) >= _MAX_REMEMBERED_EVENTS:
            self._messages.clear()
        self._messages[regarding["uid"], write.reason] = write.message


def _event(write: EmitEvent, now: datetime) -> Json:
    """Return a core/v1 Event."""
    regarding = write.regarding["metadata"]
    is_group = write.regarding.get("kind") == "PodGroup"
    timestamp = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "metadata": {"generateName": f"{regarding['name']}.", "namespace": regarding["namespace"]},
        "involvedObject": {
            "apiVersion": f"{POD_GROUP_GROUP}/{POD_GROUP_VERSION}" if is_group else "v1",
            "kind": "PodGroup" if is_group else "Pod",
            "name": regarding["name"],
            "namespace": regarding["namespace"],
            "uid": regarding["uid"],
        },
        "reason": write.reason,
        "message": write.message[:1024],
        "type": "Warning" if write.is_warning else "Normal",
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "firstTimestamp": timestamp,
        "lastTimestamp": timestamp,
        "count": 1,
    }


def pin_affinity(affinity: Json | None, node: str) -> Json:
    """Return an affinity that also requires a node.

    Requirements of a gated pod cannot be removed. They can be added to terms that have any: an
    empty term matches no node
    (https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/).
    """
    affinity = dict(affinity or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    pinned: Json = {"key": "metadata.name", "operator": "In", "values": [node]}
    pod_terms: list[dict[str, Any]] = (node_affinity.get(key) or {}).get("nodeSelectorTerms") or []
    terms = pod_terms or [{}]
    node_affinity[key] = {
        "nodeSelectorTerms": [
            {**term, "matchFields": [*(term.get("matchFields") or ()), pinned]}
            if not pod_terms or any(term.values())
            else term
            for term in terms
        ]
    }
    return {**affinity, "nodeAffinity": node_affinity}


def _parse(response: Any) -> Json:
    parsed: Json = json.loads(response.data)
    return parsed
