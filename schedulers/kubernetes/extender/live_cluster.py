"""The cluster that an extender looks at and binds pods in."""

from __future__ import annotations

import json
from collections.abc import Mapping

from kubernetes.client import ApiClient, ApiException, CoreV1Api
from urllib3.exceptions import HTTPError

from presage.schedulers.kubernetes.api.cache import Cache
from presage.schedulers.kubernetes.api.refusals import said
from presage.schedulers.kubernetes.extender.extender_types import BindArgs
from presage.schedulers.kubernetes.kubernetes_names import DEVICES
from presage.schedulers.kubernetes.snapshot import Snapshot

_MERGE_PATCH = "application/merge-patch+json"


class LiveCluster:
    """What a cache knows, and bindings by the API server."""

    def __init__(self, api: ApiClient, cache: Cache) -> None:
        self._core, self._cache = CoreV1Api(api), cache

    def snapshot(self) -> Snapshot:
        """All that is known now."""
        return self._cache.snapshot()

    def lag_s(self) -> Mapping[str, float]:
        """For how long nothing was heard of each kind."""
        return {str(kind): lag_s for kind, lag_s in self._cache.lag_s().items()}

    def note(self, pod: BindArgs, devices: str) -> str:
        """Note a pod's devices before it is bound; why that failed, else empty."""
        metadata = {"uid": pod.pod_uid, "annotations": {DEVICES: devices}}
        try:
            answer = self._core.patch_namespaced_pod(
                pod.pod_name, pod.pod_namespace, {"metadata": metadata},
                _content_type=_MERGE_PATCH, _preload_content=False,
            )  # fmt: skip
        except (ApiException, HTTPError) as error:
            return said(error)
        self._cache.put("Pod", json.loads(answer.data))
        return ""

    def bind(self, pod: BindArgs) -> str:
        """Bind a pod; why that failed, else empty."""
        binding = {
            "metadata": {"name": pod.pod_name, "uid": pod.pod_uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": pod.node},
        }
        try:
            # Its answer is a Status, which the client takes for a Binding and cannot read.
            self._core.create_namespaced_pod_binding(
                pod.pod_name, pod.pod_namespace, binding, _preload_content=False
            )
        except (ApiException, HTTPError) as error:
            return said(error)
        return ""
