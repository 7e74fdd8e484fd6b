"""Catching operators before autograd and before torch takes composite ones apart.

A dispatch mode comes too late for both. An autocast key comes first, and torch turns one on and
off per thread; one that stock torch has no kernel for is free to be ours, on meta tensors too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Interception:
    """Replacements of aten operators that act within :meth:`enabled` alone."""

    def __init__(self, dispatch_key: str) -> None:
        self._name = dispatch_key
        self._key = getattr(torch._C.DispatchKey, dispatch_key)
        self._key_set = torch._C.DispatchKeySet(self._key)
        # Both must live as long as the replacements are to act.
        self._others: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
        self._others.fallback(torch.library.fallthrough_kernel, dispatch_key)  # type: ignore[no-untyped-call]
        self._caught: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]

    def catch(self, op: Any, replacement: Callable[..., Any]) -> None:
        """Have ``replacement`` called in place of an operator; it may call the operator itself."""

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(self._key_set):
                return replacement(*args, **kwargs)

        self._caught.impl(op, kernel, self._name)

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Replacements act in here, on this thread and in backward passes begun here."""
        was_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(self._key)
        torch._C._dispatch_tls_set_dispatch_key_excluded(self._key, False)
        try:
            with torch._C._IncludeDispatchKeyGuard(self._key):
                yield
        finally:
            torch._C._dispatch_tls_set_dispatch_key_excluded(self._key, was_excluded)
