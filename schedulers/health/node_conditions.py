"""Health of a Kubernetes node: its conditions and taints.

Readiness is Kubernetes' own. Other conditions come from monitors such as node-problem-detector and
NVSentinel, where the status "True" is a problem; NVSentinel's messages have the form
``ErrorCode:79 gpu:0 XID error occured Recommended Action=NODE_REBOOT;``, one part for each error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from presage.schedulers.health.health_signal import HealthSignal, Severity
from presage.schedulers.health.xid import normal_bus, xid_signal

_GPU_WORDS = ("gpu", "xid", "nvlink", "nvswitch", "nvidia")
_CODE = re.compile(r"\bErrorCode:(\d{1,5})\b")
_ACTION = re.compile(r"Recommended Action=(\w+)")
_DEVICES = (
    (re.compile(r"\b(GPU-[0-9a-fA-F]{8}-[0-9a-fA-F-]{27})\b"), ""),
    (re.compile(r"\bPCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})", re.IGNORECASE), "bus"),
    (re.compile(r"\bgpu:(\d{1,3})\b", re.IGNORECASE), "#"),
)
_UNREADY_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def node_signals(node: Mapping[str, Any]) -> list[HealthSignal]:
    """Return the signals of a node, as the API server returns it; anything invalid is ignored.

    A node that is not ready has failed. A GPU condition concerns the devices that its message
    names, else the whole node. GPU taints that keep jobs away are degraded, or failed with the
    effect NoExecute. Cordoning is an operator's decision, not a signal.
    """
    return [signal for signal, _ in timed_node_signals(node)]


def timed_node_signals(node: Mapping[str, Any]) -> list[tuple[HealthSignal, str]]:
    """Return the signals of a node, each with its beginning as the API server writes it.

    That is the last transition of a condition, and for a taint the time at which it was added,
    which Kubernetes keeps only for the effect NoExecute; "" if it is unknown.
    """
    found = []
    for condition in _dicts(_get(node, "status", "conditions")):
        since = str(condition.get("lastTransitionTime") or "")
        found += [(signal, since) for signal in _condition_signals(condition)]
    for taint in _dicts(_get(node, "spec", "taints")):
        since = str(taint.get("timeAdded") or "")
        found += [(signal, since) for signal in _taint_signals(taint)]
    return found


def ready_since(node: Mapping[str, Any]) -> str:
    """Return when a node became ready, as the API server writes it; "" if it is not or unknown."""
    for condition in _dicts(_get(node, "status", "conditions")):
        if condition.get("type") == "Ready" and condition.get("status") == "True":
            return str(condition.get("lastTransitionTime") or "")
    return ""


def _condition_signals(condition: Mapping[str, Any]) -> list[HealthSignal]:
    kind, status = str(condition.get("type")), condition.get("status")
    if kind == "Ready":
        if status == "True":
            return []
        return [HealthSignal("", "condition", Severity.FAILED, f"Ready is {status}")]
    if status != "True" or not any(word in kind.lower() for word in _GPU_WORDS):
        return []
    parts = [part for part in str(condition.get("message") or "").split(";") if part.strip()]
    return [_error_signal(kind, part) for part in parts or [""]]


def _error_signal(kind: str, text: str) -> HealthSignal:
    """Return the signal of one part of a condition's message."""
    device = _device(text)
    code, action = _CODE.search(text), _ACTION.search(text)
    if code is not None and "xid" in kind.lower() and "sxid" not in kind.lower():
        found = xid_signal(device, int(code[1]))
        return found._replace(source="condition", reason=f"{kind}: {found.reason}")
    severity = Severity.NOTICE if action and action[1] == "NONE" else Severity.DEGRADED
    return HealthSignal(device, "condition", severity, f"{kind}: {action[1] if action else 'True'}")


def _device(text: str) -> str:
    for pattern, form in _DEVICES:
        found = pattern.search(text)
        if found is not None:
            return normal_bus(found[1]) if form == "bus" else form + found[1]
    return ""


def _taint_signals(taint: Mapping[str, Any]) -> list[HealthSignal]:
    key, effect = str(taint.get("key")), taint.get("effect")
    if key in _UNREADY_TAINTS:
        return [HealthSignal("", "taint", Severity.FAILED, key)]
    # The key nvidia.com/gpu by itself reserves a node for jobs with GPUs.
    is_health = key != "nvidia.com/gpu" and any(word in key.lower() for word in _GPU_WORDS)
    if not is_health or effect not in {"NoSchedule", "NoExecute"}:
        return []
    severity = Severity.FAILED if effect == "NoExecute" else Severity.DEGRADED
    return [HealthSignal("", "taint", severity, key)]


def _get(node: Mapping[str, Any], section: str, name: str) -> Any:
    found = node.get(section)
    return found.get(name) if isinstance(found, Mapping) else None


def _dicts(rows: Any) -> list[Mapping[str, Any]]:
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        return []
    return [row for row in rows if isinstance(row, Mapping)]
