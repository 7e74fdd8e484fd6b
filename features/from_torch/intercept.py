"""Interception of operators before autograd and before torch decomposes composite ones.

A dispatch mode comes too late for both. An autocast key comes first, and torch enables one per
thread; a key without a kernel in stock torch is free for our use, on meta tensors too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Interception:
    """Replacements of aten operators that are active only within :meth:`enabled`."""

    def __init__(self, dispatch_key: str) -> None:
        self._name = dispatch_key
        self._key = getattr(torch._C.DispatchKey, dispatch_key)
        self._key_set = torch._C.DispatchKeySet(self._key)
        # Both must live as long as the replacements are active.
        self._fallthrough: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
        self._fallthrough.fallback(torch.library.fallthrough_kernel, dispatch_key)  # type: ignore[no-untyped-call]
        self._kernels: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]

    def catch(self, op: Any, replacement: Callable[..., Any]) -> None:
        """Call ``replacement`` instead of an operator; it may call the operator itself."""

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(self._key_set):
                return replacement(*args, **kwargs)

        self._kernels.impl(op, kernel, self._name)

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Enable replacements on this thread, and in backward passes started in this block."""
        was_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(self._key)
        torch._C._dispatch_tls_set_dispatch_key_excluded(self._key, False)
        try:
            with torch._C._IncludeDispatchKeyGuard(self._key):
                yield
        finally:
            torch._C._dispatch_tls_set_dispatch_key_excluded(self._key, was_excluded)
