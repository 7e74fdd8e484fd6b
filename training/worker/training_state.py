"""Training state of a worker: what another worker needs to continue from the same position."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

from presage.errors import ElasticError
from presage.training.data_set_grouping import Cursor

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

_MARGIN_BYTES = 64 << 20
# Parts of a specification that must be the same for a state to be restored, and their descriptions.
# The batch and the virtual shards may change, because the cursor counts samples.
_PERMANENT = {
    "model": "model",
    "optimizer": "optimizer",
    "samples": "number of samples",
    "data_set": "digest of the data set",
    "seed": "seed",
    "epochs": "number of epochs",  # known to members only, so a checkpoint can be continued longer
}


class TrainingState:
    """Parameters, buffers, optimizer, learning-rate schedule and cursor of a worker.

    Attributes
    ----------
    cursor : Cursor
        Position up to which steps are in the parameters.
    specification : dict
        What this worker trains. A state of another model, optimizer, data set or seed is rejected.
    is_stopped : bool
        Whether a worker ended the training early.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, scheduler: Any) -> None:
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.specification: dict[str, Any] = {}
        self.cursor = Cursor()
        self.is_stopped = False

    @property
    def model_digest(self) -> str:
        """Digest of the names, shapes and types of parameters and buffers."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        lines = [f"{_bare(name)} {tuple(one.shape)} {one.dtype}" for name, one in named]
        text = "\n".join(lines)
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
                "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
                "specification": self.specification,
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
            The state is corrupt, or of a job that trains something else.
        """
        import torch

        try:
            state = dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
        except Exception:  # of any type: torch reads corrupt content without checking it
            raise ElasticError("the state is corrupt") from None
        self._check(state.get("specification", {}))  # earlier versions have none
        try:
            with torch.no_grad():
                for name in ("parameters", "buffers"):
                    own = list(getattr(self.model, name)())
                    for target, value in zip(own, state[name], strict=True):
                        _copy(target, value)
            if (state["scheduler"] is None) != (self.scheduler is None):
                raise ValueError("only one of both has a learning-rate scheduler")
            self.optimizer.load_state_dict(state["optimizer"])
            if self.scheduler is not None:
                self.scheduler.load_state_dict(state["scheduler"])
        except (ValueError, RuntimeError, KeyError) as error:
            raise ElasticError(f"the job's state does not fit this worker: {error}") from None
        self.cursor = Cursor.from_message(state["cursor"])
        self.is_stopped = bool(state["is_stopped"])

    def _check(self, found: dict[str, Any]) -> None:
        """Raise ElasticError if a state is of a job that trains something else."""
        for name, description in _PERMANENT.items():
            theirs, ours = found.get(name, ""), self.specification.get(name, "")
            if theirs != ours and "" not in (theirs, ours):  # "" is unknown
                raise ElasticError(
                    f"the state is of a job with another {description} ({theirs!r}, this script "
                    f"has {ours!r})"
                )


def _bare(name: str) -> str:
    """Return the name that a parameter has without DistributedDataParallel."""
    return name.removeprefix("module.")


def _copy(target: Tensor, value: Tensor) -> None:
    """Copy a tensor of the same shape."""
    if target.shape != value.shape:
        raise ValueError(f"a tensor has shape {tuple(value.shape)}, not {tuple(target.shape)}")
    target.copy_(value)
