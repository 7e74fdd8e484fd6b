"""Access of the extender to a live cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping

from kubernetes.client import ApiClient, ApiException, CoreV1Api
from urllib3.exceptions import HTTPError

from presage.schedulers.kubernetes.api.api_errors import describe_error
from presage.schedulers.kubernetes.api.cache import Cache
from presage.schedulers.kubernetes.extender.extender_types import BindArgs
from presage.schedulers.kubernetes.kubernetes_names import DEVICES
from presage.schedulers.kubernetes.snapshot import Snapshot

_MERGE_PATCH = "application/merge-patch+json"


class LiveCluster:
    """Snapshots from a cache, and bindings through the API server."""

    def __init__(self, api: ApiClient, cache: Cache) -> None:
        self._core, self._cache = CoreV1Api(api), cache

    def snapshot(self) -> Snapshot:
        """Return the current snapshot."""
        return self._cache.snapshot()

    def lag_s(self) -> Mapping[str, float]:
        """Return the seconds since the last response of the API server, by kind."""
        return {str(kind): lag_s for kind, lag_s in self._cache.lag_s().items()}

    def annotate_devices(self, pod: BindArgs, devices: str) -> str:
        """Annotate a pod with its devices before it is bound; return the error, or ""."""
        metadata = {"uid": pod.pod_uid, "annotations": {DEVICES: devices}}
        try:
            response = self._core.patch_namespaced_pod(
                pod.pod_name, pod.pod_namespace, {"metadata": metadata},
                _content_type=_MERGE_PATCH, _preload_content=False,
            )  # fmt: skip
        except (ApiException, HTTPError) as error:
            return describe_error(error)
        self._cache.put("Pod", json.loads(response.data))
        return ""

    def bind(self, pod: BindArgs) -> str:
        """Bind a pod; return the error, or ""."""
        binding = {
            "metadata": {"name": pod.pod_name, "uid": pod.pod_uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": pod.node},
        }
        try:
            # The response is a Status, which the client cannot parse as a Binding.
            self._core.create_namespaced_pod_binding(
                pod.pod_name, pod.pod_namespace, binding, _preload_content=False
            )
        except (ApiException, HTTPError) as error:
            return describe_error(error)
        return ""
