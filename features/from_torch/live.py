"""Lifetimes of tensors while a step is traced, and the memory component of each."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from presage.features.graph.step_memory import MemoryEstimate


def storage_key(tensor: Tensor) -> int:
    """Return the key that a tensor and all its views share."""
    key: int = tensor.untyped_storage()._cdata
    return key


class LiveTensors:
    """Bytes of every storage, from its allocation to its release.

    Attributes
    ----------
    weights : set of int
        :func:`storage_key` of all parameters, buffers and their casts.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.peak_bytes = 0
        self._bytes = 0
        self._held: dict[int, tuple[int, Any]] = {}  # size and weak reference, by storage
        self._parameters = list({id(p): p for m in modules for p in m.parameters()}.values())
        held = [*self._parameters, *_distinct(b for m in modules for b in m.buffers())]
        self.observe(held)
        self.weights = {storage_key(tensor) for tensor in held}
        self._model = frozenset(self.weights)
        self._states: set[int] = set()
        self._batch: set[int] = set()
        self._activation_bytes = self._gradient_bytes = 0
        self.observe(self._gradients())  # of a previous step, not part of the batch

    @property
    def parameter_elements(self) -> int:
        """Distinct trainable elements; of a model without trainable parameters, all elements."""
        trained = [p for p in self._parameters if p.requires_grad]
        return sum(p.numel() for p in trained or self._parameters)

    def observe_inputs(self, tensors: Iterable[Tensor]) -> None:
        """Record an operator's inputs: those that no operator wrote belong to the batch."""
        new = [t for t in tensors if t.is_meta and storage_key(t) not in self._held]
        self.observe(new)
        self._batch.update(map(storage_key, new))

    def observe(self, tensors: Iterable[Tensor]) -> None:
        """Count the memory of tensors until it is freed; views of counted tensors are free."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in self._held:
                self._held[key] = (size, weakref.ref(storage, _Forget(self, key)))
                self._bytes += size
        self.peak_bytes = max(self.peak_bytes, self._bytes)

    def forget(self, key: int) -> None:
        """Remove a freed storage; its address may be reused."""
        self._bytes -= self._held.pop(key)[0]
        self.weights.discard(key)
        self._states.discard(key)
        self._batch.discard(key)

    def forward_ended(self) -> None:
        """Record the activations: all that is alive at the end of the forward pass."""
        gradients = {storage_key(gradient) for gradient in self._gradients()}
        others = self._model | self._states | self._batch | gradients
        kept = sum(size for key, (size, _) in self._held.items() if key not in others)
        self._activation_bytes = max(self._activation_bytes, kept)

    def backward_ended(self) -> None:
        """Record the gradients, which are complete."""
        gradients = _distinct(self._gradients())
        self.observe(gradients)
        self._gradient_bytes = max(self._gradient_bytes, self._size(map(storage_key, gradients)))

    def updated_by(self, optimizer: Optimizer) -> None:
        """Record the state of an optimizer."""
        states = [
            value
            for of_parameter in optimizer.state.values()
            for value in of_parameter.values()
            # A step counter has no dimension, and may be on the host.
            if isinstance(value, Tensor) and value.is_meta and value.ndim
        ]
        self.observe(states)
        self._states.update(map(storage_key, states))

    def estimate(self) -> MemoryEstimate:
        """Return the components of the peak."""
        parameters, states = self._size(self._model), self._size(self._states)
        batch = self._size(self._batch)
        passing = max(self._activation_bytes, self._gradient_bytes)
        return MemoryEstimate(
            parameter_bytes=parameters,
            gradient_bytes=self._gradient_bytes,
            optimizer_state_bytes=states,
            activation_bytes=self._activation_bytes,
            workspace_bytes=self.peak_bytes - parameters - states - batch - passing,
            batch_bytes=batch,
        )

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self._parameters if p.grad is not None]

    def _size(self, keys: Iterable[int]) -> int:
        return sum(self._held[key][0] for key in keys if key in self._held)


class _Forget:
    """Callback for a freed storage. A class, because a closure per tensor takes thrice the time."""

    __slots__ = ("key", "live")

    def __init__(self, live: LiveTensors, key: int) -> None:
        self.live, self.key = live, key

    def __call__(self, _: Any) -> None:
        self.live.forget(self.key)


def _distinct(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return one tensor for each storage."""
    return list({storage_key(tensor): tensor for tensor in tensors}.values())
