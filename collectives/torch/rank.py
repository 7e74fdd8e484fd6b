"""Parts of a rank that decide its AllReduces, put together and taken apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store

from presage.collectives.core.in_band import InBandAgreement
from presage.collectives.core.messages import Member
from presage.collectives.core.two_phase import TwoPhaseAgreement
from presage.collectives.torch.arbiter_link import ArbiterLink, open_arbiter_link
from presage.collectives.torch.collective_queue import CollectiveQueue
from presage.collectives.torch.control import Control
from presage.collectives.torch.driver.rank_driver import RankDriver
from presage.collectives.torch.epoch_exchange import EpochExchange
from presage.collectives.torch.peers.connections import Peers
from presage.collectives.torch.settings import Settings
from presage.collectives.torch.switch_link import SwitchLink

_LEAVE_S = 10.0


class Rank:
    """Queue, driver and connections of one rank.

    The arbiter is used only if all ranks have its address. Rank 0 decides the other settings.

    Attributes
    ----------
    settings : Settings
        Settings that all ranks share.
    arbiter : ArbiterLink or None
        Connection to the arbiter; None if everything runs by ring.
    """

    def __init__(
        self, store: Store, rank: int, ranks: int, timeout: timedelta, settings: Settings
    ) -> None:
        if rank == 0:
            store.set("settings", json.dumps(settings.shared()))
        self.settings = settings = settings.with_shared(json.loads(store.get("settings")))
        member = Member(settings.job, rank, ranks)
        is_in_band = settings.agreement == "in_band"
        self._exchange = EpochExchange(PrefixStore("epochs", store), rank, ranks, timeout)
        has_arbiter = bool(self._exchange.agree(int(bool(settings.arbiter))))
        self._exchange.has_epochs = has_arbiter and is_in_band
        self._link = SwitchLink(member, settings.job_token)
        self.arbiter: ArbiterLink | None = None
        if has_arbiter:
            self.arbiter = open_arbiter_link(settings, member)
        self.driver = RankDriver(
            member,
            InBandAgreement() if is_in_band else TwoPhaseAgreement(),
            exchange=self._exchange,
            link=self._link,
            connection=self.arbiter.connection if self.arbiter else None,
            timeout_s=timeout.total_seconds(),
            on_view=self.arbiter.publish if self.arbiter else None,
        )
        self._peers = Peers(
            PrefixStore("peers", store), rank, ranks,
            token=settings.job_token, timeout_s=timeout.total_seconds(),
            on_message=self.driver.receive_from_peer, on_loss=self.driver.peer_lost,
        )  # fmt: skip
        self.driver.peers = self._peers
        self.queue = CollectiveQueue()
        self._control = Control(self.driver, self.queue, self._report if has_arbiter else None)
        self._is_closed = False

    def close(self) -> None:
        """End all threads and connections; later calls do nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        parts: list[Callable[[], Any]] = [
            self.queue.close,
            self._exchange.drain,
            lambda: self.driver.leave(_LEAVE_S),
            self._control.close,
            self._link.close,
            self._peers.close,
            self._exchange.close,
        ]
        if self.arbiter is not None:
            parts.append(self.arbiter.close)
        for close in parts:
            with suppress(Exception):  # one part that is broken keeps no other open
                close()

    def _report(self) -> None:
        assert self.arbiter is not None
        self.arbiter.report(self.driver.number)
