"""Connection of a rank to its switch, which is made again in the background when it is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from presage.collectives.core.messages import Member
from presage.collectives.switch.client import Completed, SwitchClient
from presage.collectives.switch.errors import SwitchError, SwitchLostError

RETRY_S = 0.5
_TIMEOUT_S = 8.0  # without progress; above the lease of the switch, so that the switch decides


class Address(Protocol):
    """Address of a switch, as the arbiter gives it."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def host(self) -> str: ...  # noqa: D102
    @property
    def port(self) -> int: ...  # noqa: D102
    @property
    def token(self) -> str: ...  # noqa: D102
    @property
    def epoch(self) -> int: ...  # noqa: D102


class SwitchLink:
    """Registration of a rank at the topmost switch of its job.

    Attributes
    ----------
    completed : Completed or None
        Last sum of the switch, also after the connection was lost.
    """

    def __init__(self, member: Member, job_token: str, timeout_s: float = _TIMEOUT_S) -> None:
        self.completed: Completed | None = None
        self._member, self._token, self._timeout_s = member, job_token, timeout_s
        self._client: SwitchClient | None = None
        self._address: Address | None = None
        self.connecting: threading.Thread | None = None
        self._retry_s = 0.0
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        """Whether the rank is registered, as far as it knows."""
        return self._client is not None and not self._client.is_closed

    def all_reduce(self, buffer: NDArray[np.float32], number: int, epoch: int) -> None:
        """Replace the buffer by the sum over the ranks; it is unchanged after an error.

        Raises
        ------
        SwitchError
            The switch refused the number, was lost, or there is no connection.
        """
        client = self._client
        if client is None:
            raise SwitchLostError("this rank is not connected to a switch")
        client.all_reduce(buffer, number=number, epoch=epoch)
        self.completed = client.completed

    def interrupt(self) -> None:
        """End the connection, and with it an AllReduce that is under way."""
        if self._client is not None:
            self._client.close()

    def maintain(self, addresses: Sequence[Address], epoch: int) -> None:
        """Connect in the background if there is a switch and no connection to it.

        Parameters
        ----------
        addresses : sequence of Address
            Switches of the job, the topmost one first.
        epoch : int
            Epoch of the view in use.
        """
        address = addresses[0] if addresses else None
        with self._lock:
            if address != self._address:
                self._address = address
                self.interrupt()
        is_trying = self.connecting is not None and self.connecting.is_alive()
        if address is None or self.is_connected or is_trying or time.monotonic() < self._retry_s:
            return
        self._retry_s = time.monotonic() + RETRY_S
        self.connecting = threading.Thread(
            target=self._connect, args=(address, epoch), name="inc-connect", daemon=True
        )
        self.connecting.start()

    def close(self) -> None:
        """End the connection for good."""
        with self._lock:
            self._is_closed = True
            self.interrupt()

    def _connect(self, address: Address, epoch: int) -> None:
        job, rank, ranks = self._member
        with suppress(SwitchError):  # it is tried again
            client = SwitchClient(
                address.host,
                address.port,
                job=job,
                rank=rank,
                ranks=ranks,
                epoch=max(epoch, address.epoch),
                token=self._token,
                switch_token=address.token,
                timeout_s=self._timeout_s,
            )
            with self._lock:
                if self._is_closed or address != self._address:  # changed meanwhile
                    client.close()
                else:
                    self._client = client
