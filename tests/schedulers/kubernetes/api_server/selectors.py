"""Label and field selectors of lists and watches.

References
----------
https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#api
https://kubernetes.io/docs/concepts/overview/working-with-objects/field-selectors/
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.schedulers.kubernetes.api_server.statuses import ApiError, Json

Matches = Callable[[Json], bool]

# In addition to metadata.name and metadata.namespace, which every kind has.
FIELDS = {
    "pods": (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
        "status.phase", "status.podIP", "status.nominatedNodeName",
    ),
    "nodes": ("spec.unschedulable",),
    "events": (
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name",
        "involvedObject.uid", "reason", "type",
    ),
    "namespaces": ("status.phase",),
}  # fmt: skip

DEFAULTS = {"unschedulable": "false"}
REQUIREMENT = re.compile(
    r"""\s*(?: (?P<key>[^\s=!,()]+)\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)
            | (?P<left>[^\s=!,()]+)\s*(?P<op>==|=|!=)\s*(?P<right>[^\s=!,()]*)
            | (?P<absent>!)?\s*(?P<only>[^\s=!,()]+) )\s*(?:,|$)""",
    re.VERBOSE,
)


def label_selector(text: str) -> Matches:
    """Return a label selector; `!=` and `notin` also match objects without the key."""
    tests: list[tuple[str, Callable[[str | None], bool]]] = []
    position = 0
    while position < len(text):
        found = REQUIREMENT.match(text, position)
        if found is None:
            raise ApiError(400, f"unable to parse requirement: {text!r}")
        position = found.end()
        if found["set"]:
            values = {value.strip() for value in found["values"].split(",")}
            tests.append((found["key"], _is_one_of(values, expected=found["set"] == "in")))
        elif found["op"]:
            tests.append(
                (found["left"], _is_one_of({found["right"]}, expected=found["op"] != "!="))
            )
        else:
            tests.append((found["only"], _is_present(expected=not found["absent"])))

    def matches(candidate: Json) -> bool:
        labels = candidate["metadata"].get("labels") or {}
        return all(test(labels.get(key)) for key, test in tests)

    return matches


def _is_one_of(values: set[str], *, expected: bool) -> Callable[[str | None], bool]:
    return lambda value: (value in values) == expected


def _is_present(*, expected: bool) -> Callable[[str | None], bool]:
    return lambda value: (value is not None) == expected


def field_selector(text: str, plural: str) -> Matches:
    """Return a field selector; fields that the kind does not support are rejected."""
    tests = []
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", part)
        if found is None:
            raise ApiError(400, f"invalid selector: {text!r}; can't understand {part!r}")
        path, operator, value = found.groups()
        if path not in ("metadata.name", "metadata.namespace", *FIELDS.get(plural, ())):
            raise ApiError(400, f"field label not supported: {path}")
        tests.append((path.split("."), operator != "!=", value))

    def matches(candidate: Json) -> bool:
        return all((_field(candidate, path) == value) == same for path, same, value in tests)

    return matches


def _field(candidate: Json, path: list[str]) -> str:
    value: Any = candidate
    for key in path:
        value = value.get(key) or {}
    # A missing spec.unschedulable is false; a missing string is empty.
    return str(value).replace("True", "true") if value else DEFAULTS.get(path[-1], "")
