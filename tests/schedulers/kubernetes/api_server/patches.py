"""Merge patch, JSON patch and strategic merge patch.

References
----------
RFC 7386 (merge patch), RFC 6902 (JSON patch), and of the strategic one
https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md
"""

from __future__ import annotations

import copy
from typing import Any

from tests.schedulers.kubernetes.api_server.statuses import ApiError, Json

# patchMergeKey of the lists in core/v1 types.go that are merged; tolerations, taints,
# nodeSelectorTerms and every other list are replaced as a whole.
MERGE_KEYS = {
    "schedulingGates": "name",
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "topologySpreadConstraints": "topologyKey",
    "conditions": "type",
    "addresses": "type",
    "ownerReferences": "uid",
}


def merge_patch(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def strategic_merge_patch(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    for key in patch:
        if key.startswith("$") and key != "$patch":
            raise ApiError(400, f"{key} is not supported here")
    match patch.get("$patch"):
        case "delete":
            return {}
        case "replace":
            return {key: value for key, value in patch.items() if key != "$patch"}
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, list) and key in MERGE_KEYS:
            merged[key] = _merged_list(merged.get(key) or [], value, MERGE_KEYS[key])
        elif isinstance(value, list) and key == "finalizers":
            merged[key] = [*(merged.get(key) or []), *value]
            merged[key] = list(dict.fromkeys(merged[key]))
        elif key != "$patch":
            merged[key] = strategic_merge_patch(merged.get(key), value)
    return merged


def _merged_list(target: list[Json], patch: list[Json], merge_key: str) -> list[Json]:
    """Merge lists by key; entries that the patch does not name stay."""
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    merged = {item[merge_key]: item for item in target}
    for item in patch:
        if merge_key not in item:
            raise ApiError(400, f"map: {item} does not contain declared merge key: {merge_key}")
        if item.get("$patch") == "delete":
            merged.pop(item[merge_key], None)
        else:
            merged[item[merge_key]] = strategic_merge_patch(merged.get(item[merge_key]), item)
    return list(merged.values())


def json_patch(target: Json, patch: Any) -> Json:
    """Apply all operations in order, or none; a failure gives status 422."""
    if not isinstance(patch, list):
        raise ApiError(400, "json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    patched = copy.deepcopy(target)
    for operation in patch:
        try:
            _apply(patched, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            # handlers/patch.go returns this for every operation, with the cause in details.
            raise ApiError(
                422,
                "the server rejected our request due to an error in our request",
                details={"causes": [{"reason": "UnexpectedServerResponse", "message": str(error)}]},
            ) from None
    return patched


def _apply(document: Any, operation: Json) -> None:
    tokens = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")]
    *parents, last = tokens[1:]
    for token in parents:
        document = document[int(token) if isinstance(document, list) else token]
    name = operation["op"]
    if name not in ("add", "remove", "replace", "test"):
        raise ValueError(f"operation {name!r} is not supported here")
    if isinstance(document, list):
        index = len(document) if last == "-" and name == "add" else int(last)
        if not 0 <= index <= len(document) - (name != "add"):
            raise IndexError(f"{name} operation does not apply: no {operation['path']}")
        if name == "add":
            document.insert(index, operation["value"])
            return
        key: Any = index
    else:
        key = last
        if name in ("remove", "replace") and key not in document:
            raise KeyError(f"{name} operation does not apply: no {operation['path']}")
    if name == "remove":
        del document[key]
    elif name == "test":
        present = document[key] if isinstance(document, list) else document.get(key)
        if present != operation.get("value"):
            raise ValueError(f"testing value {operation['path']} failed: test failed")
    else:
        document[key] = operation["value"]
