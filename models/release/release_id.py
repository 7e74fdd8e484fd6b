"""The id of a release: a digest of its manifest, and so of everything that can change an answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# The last format whose id covers the names of the folders that training tables lay in.
_COVERS_FOLDERS = 5


def content_id(content: Mapping[str, Any]) -> str:
    """Return the id that a manifest with this content must have: 12 hexadecimal digits.

    The ONNX files are covered by their sha256 in the manifest. Not covered are the id itself and,
    from format 6 on, the names of the folders of training tables: the tables are covered by their
    sha256, and equal tables make the same release wherever they lie.
    """
    rest = {key: value for key, value in content.items() if key != "release_id"}
    number = content.get("format")
    if isinstance(number, int) and number > _COVERS_FOLDERS and "learnt_from" in rest:
        rest["learnt_from"] = _without_folder_names(rest["learnt_from"])
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:12]


def _without_folder_names(training_data: Any) -> Any:
    """Return the training data of a release, and of those it started from, without folder names.

    What is no such object, as in a damaged manifest, is returned as it is.
    """
    if not isinstance(training_data, dict):
        return training_data
    out = dict(training_data)
    if isinstance(folders := out.get("folders"), list):
        out["folders"] = [
            {key: value for key, value in one.items() if key != "folder"}
            if isinstance(one, dict)
            else one
            for one in folders
        ]
    if isinstance(before := out.get("began_with"), dict):
        out["began_with"] = before | {
            "learnt_from": _without_folder_names(before.get("learnt_from"))
        }
    return out
