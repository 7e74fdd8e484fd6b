"""A stand-in of the Job controller: what is deleted or fails comes back under a new name."""

from __future__ import annotations

from collections.abc import Iterable

from tests.schedulers.kubernetes.api_server.api_server import ApiServer
from tests.schedulers.kubernetes.api_server.statuses import Json

# Keeps a pod until the controller has counted it: also one that was never bound.
FINALIZER = "batch.kubernetes.io/job-tracking"


class JobController:
    """Keeps one pod per template; acts only in ``step``."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._templates: dict[tuple[str, str], tuple[Json, Json]] = {}  # by namespace and pod

    def owned(self, job: str, templates: Iterable[Json]) -> list[str]:
        """Create a job's pods, one a template, gates and all; their names, in that order."""
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
        """Let go of pods that are being deleted or have ended, and replace all but those done.

        As with podReplacementPolicy TerminatingOrFailed, the default: a pod that was bound is
        replaced while it is still there. Returns the new pods' names.
        """
        new = []
        for (namespace, name), (owner, template) in list(self._templates.items()):
            pod = self._server.get("pods", name, namespace)
            if pod is not None and not _over(pod):
                continue
            del self._templates[namespace, name]
            if pod is not None and FINALIZER in pod["metadata"].get("finalizers", []):
                self._server.change("pods", name, {"metadata": {"finalizers": None}}, namespace)
            if pod is None or pod["status"]["phase"] != "Succeeded":
                new.append(self._create(owner, template))
        return new

    def _create(self, owner: Json, template: Json) -> str:
        given = template["metadata"]
        labels = {**(given.get("labels") or {}), "batch.kubernetes.io/job-name": owner["name"]}
        metadata = {
            "generateName": f"{owner['name']}-",
            "namespace": given.get("namespace", "default"),
            "labels": labels,
            "annotations": given.get("annotations") or {},
            "ownerReferences": [owner],
            "finalizers": [FINALIZER],
        }
        created = self._server.create("pods", {**template, "metadata": metadata})["metadata"]
        self._templates[created["namespace"], created["name"]] = (owner, template)
        return str(created["name"])


def _over(pod: Json) -> bool:
    going = "deletionTimestamp" in pod["metadata"]
    return going or pod["status"]["phase"] in ("Succeeded", "Failed")
