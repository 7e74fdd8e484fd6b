"""``import presage`` is light, and offers the names that users need."""

from __future__ import annotations

import subprocess
import sys

import pytest

import presage

HEAVY = ("numpy", "grpc", "torch", "pandas", "onnxruntime", "typer", "yaml")


@pytest.mark.parametrize("name", presage.__all__)
def test_every_exported_name_is_found(name):
    assert getattr(presage, name) is not None
    assert name in dir(presage)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        presage.nothing  # noqa: B018


def test_importing_the_package_loads_none_of_its_dependencies():
    code = f"import presage, sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
