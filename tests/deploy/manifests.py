"""Kubernetes objects of deploy/ and examples/, and the tools that check deploy/."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
# .ci/run installs .ci/tools.lock here.
TOOLS = ROOT / "build" / "deploy-tools" / "bin"

MANIFESTS = [
    ROOT / "examples/kubernetes/presage.yaml",
    *sorted((DEPLOY / "kubernetes").rglob("[!k]*.yaml")),
]


def tool(name: str) -> str:
    """Return the path of a program; skip the test if it is not installed."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{TOOLS}")
    if found is None:
        pytest.skip(f"needs {name}; .ci/run installs all but kubectl, in build/deploy-tools")
    return found


@cache
def objects() -> tuple[dict[str, Any], ...]:
    """All objects of all manifests."""
    return tuple(
        item for path in MANIFESTS for item in yaml.safe_load_all(path.read_text()) if item
    )


def workloads() -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and pod specifications of all workloads."""
    for item in objects():
        if item["kind"] in ("Deployment", "StatefulSet", "DaemonSet"):
            yield item["metadata"]["name"], item["spec"]["template"]["spec"]


def container(name: str) -> dict[str, Any]:
    """Return the only container of a workload."""
    (found,) = dict(workloads())[name]["containers"]
    assert isinstance(found, dict)
    return found
