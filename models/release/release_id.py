"""Id of a release: a digest of its manifest, and so of everything that affects forecasts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# Last format whose id covers the names of the folders of training tables.
_COVERS_FOLDERS = 5


def content_id(content: Mapping[str, Any]) -> str:
    """Return the id that a manifest with this content must have: 12 hexadecimal digits.

    The ONNX files are covered by their sha256 in the manifest. The id itself is not covered, nor,
    from format 6 on, the names of the folders of training tables: the tables are covered by their
    sha256, and equal tables give the same release in any folder.
    """
    rest = {key: value for key, value in content.items() if key != "release_id"}
    number = content.get("format")
    if isinstance(number, int) and number > _COVERS_FOLDERS and "learnt_from" in rest:
        rest["learnt_from"] = _without_folder_names(rest["learnt_from"])
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:12]


def _without_folder_names(training_data: Any) -> Any:
    """Return the training data of a release and its base releases, without folder names.

    A value of another type, as in a corrupt manifest, is returned unchanged.
    """
    if not isinstance(training_data, dict):
        return training_data
    out = dict(training_data)
    if isinstance(folders := out.get("folders"), list):
        out["folders"] = [
            {key: value for key, value in folder.items() if key != "folder"}
            if isinstance(folder, dict)
            else folder
            for folder in folders
        ]
    if isinstance(base := out.get("began_with"), dict):
        out["began_with"] = base | {"learnt_from": _without_folder_names(base.get("learnt_from"))}
    return out
