"""Models of timm (PyTorch image models) on the meta device.

The library is an optional extra. It imports torchvision, which on some platforms brings CUDA with
it, for data loading that models do not need: without torchvision, a stub replaces it during the
import of timm.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from presage.errors import GraphError

NOT_INSTALLED = "timm is not installed (pip install 'presage[timm]')"
STAND_IN = ("ops", "ops.misc", "transforms", "transforms.functional", "datasets", "utils")


def build(name: str, side: int, batch_size: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Build a model and its batch on the meta device; ``side`` 0 is the model's default.

    Raises
    ------
    GraphError
        timm is not installed, or has no such model, or not in that size.
    """
    timm = library()
    if timm is None:
        raise GraphError(f"model {name!r}: {NOT_INSTALLED}")
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names that timm has changed
        try:
            model = timm.create_model(name, pretrained=False)
            own: int = model.pretrained_cfg["input_size"][-1]
            if side not in (0, own):
                model = _resized(name, side) or model
        except (RuntimeError, ValueError, AssertionError) as error:
            raise GraphError(f"model {name!r}: timm cannot build it ({error})") from error
        return model, (torch.empty(batch_size, 3, side or own, side or own),)


def _resized(name: str, side: int) -> nn.Module | None:
    """Return a model for images of a size; None if it takes any size without a parameter."""
    timm = library()
    assert timm is not None
    try:
        model: nn.Module = timm.create_model(name, pretrained=False, img_size=side)
    except TypeError:
        return None
    return model


@cache
def library() -> Any:
    """Return the module ``timm``, or None if it is not installed."""
    if find_spec("timm") is None:
        return None
    # The hub prints to standard output that it cannot download; nothing is downloaded.
    with _torchvision(), redirect_stdout(StringIO()):
        return import_module("timm")


@contextmanager
def _torchvision() -> Iterator[None]:
    """Provide a stub for a missing torchvision, only in this block."""
    if find_spec("torchvision") is not None:
        yield
        return
    names = ["torchvision", *(f"torchvision.{part}" for part in STAND_IN)]
    modules = {name: _Anything(name) for name in names}
    for name in names[1:]:
        parent, _, child = name.rpartition(".")
        setattr(modules[parent], child, modules[name])
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


class _Anything(ModuleType):
    """A module of empty classes, created on access."""

    __path__: list[str] = []  # allows submodules  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Named(name, (), {})
        setattr(self, name, made)
        return made


class _Named(type):
    """A class whose every attribute is its own name, like the members of an enumeration."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"
