"""Fake Job controller: it replaces pods that are deleted or fail by pods of a new name."""

from __future__ import annotations

from collections.abc import Iterable

from tests.schedulers.kubernetes.api_server.api_server import ApiServer
from tests.schedulers.kubernetes.api_server.statuses import Json

# Keeps a pod until the controller has counted it, even if it was never bound.
FINALIZER = "batch.kubernetes.io/job-tracking"


class JobController:
    """Controller that keeps one pod for each template; it acts only in ``step``."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._templates: dict[tuple[str, str], tuple[Json, Json]] = {}  # by namespace and pod

    def create_pods(self, job: str, templates: Iterable[Json]) -> list[str]:
        """Create one pod for each template; return their names in the same order."""
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job,
            "uid": f"uid-of-{job}",
            "controller": True,
            "blockOwnerDeletion": True,
        }
        return [self._create(owner, template) for template in templates]

    def step(self) -> list[str]:
        """Remove the finalizers of terminating and finished pods, and replace failed pods.

        As with the default podReplacementPolicy TerminatingOrFailed, a bound pod is replaced
        while it still exists. Returns the names of the new pods.
        """
        new = []
        for (namespace, name), (owner, template) in list(self._templates.items()):
            pod = self._server.get("pods", name, namespace)
            if pod is not None and not _is_replaceable(pod):
                continue
            del self._templates[namespace, name]
            if pod is not None and FINALIZER in pod["metadata"].get("finalizers", []):
                self._server.change("pods", name, {"metadata": {"finalizers": None}}, namespace)
            if pod is None or pod["status"]["phase"] != "Succeeded":
                new.append(self._create(owner, template))
        return new

    def _create(self, owner: Json, template: Json) -> str:
        metadata = template["metadata"]
        labels = {**(metadata.get("labels") or {}), "batch.kubernetes.io/job-name": owner["name"]}
        metadata = {
            "generateName": f"{owner['name']}-",
            "namespace": metadata.get("namespace", "default"),
            "labels": labels,
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": [owner],
            "finalizers": [FINALIZER],
        }
        created = self._server.create("pods", {**template, "metadata": metadata})["metadata"]
        self._templates[created["namespace"], created["name"]] = (owner, template)
        return str(created["name"])


def _is_replaceable(pod: Json) -> bool:
    is_terminating = "deletionTimestamp" in pod["metadata"]
    return is_terminating or pod["status"]["phase"] in ("Succeeded", "Failed")
