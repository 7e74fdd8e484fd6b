"""Training state of a worker: what another worker needs to continue from the same position."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

from presage.errors import ElasticError
from presage.training.data_set_grouping import Cursor

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_MARGIN_BYTES = 64 << 20


class TrainingState:
    """Parameters, buffers, optimizer, learning-rate schedule and cursor of a worker.

    Attributes
    ----------
    cursor : Cursor
        Position up to which steps are in the parameters.
    is_stopped : bool
        Whether a worker ended the training early.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, scheduler: Any) -> None:
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.cursor = Cursor()
        self.is_stopped = False

    @property
    def model_digest(self) -> str:
        """Digest of the names, shapes and types of parameters and buffers."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        text = "\n".join(f"{name} {tuple(one.shape)} {one.dtype}" for name, one in named)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def most_bytes(self) -> int:
        """Bound of the size of a captured state."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return 8 * sum(one.numel() * one.element_size() for one in tensors) + _MARGIN_BYTES

    def capture(self) -> bytes:
        """Return the state as bytes."""
        import torch

        content = io.BytesIO()
        torch.save(
            {
                "parameters": [one.detach() for one in self.model.parameters()],
                "buffers": list(self.model.buffers()),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict() if self.scheduler else None,
                "cursor": self.cursor.to_message(),
                "is_stopped": self.is_stopped,
            },
            content,
        )
        return content.getvalue()

    def restore(self, content: bytes | bytearray) -> None:
        """Take over a captured state.

        Raises
        ------
        ElasticError
            The state is of another model or optimizer.
        """
        import torch

        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        try:
            with torch.no_grad():
                for name in ("parameters", "buffers"):
                    own = list(getattr(self.model, name)())
                    for target, value in zip(own, state[name], strict=True):
                        target.copy_(value)
            self.optimizer.load_state_dict(state["optimizer"])
            if self.scheduler:
                self.scheduler.load_state_dict(state["scheduler"])
        except (ValueError, RuntimeError, KeyError) as error:
            raise ElasticError(f"the job's state does not fit this worker: {error}") from None
        self.cursor = Cursor.from_message(state["cursor"])
        self.is_stopped = bool(state["is_stopped"])
