"""One run: a cluster, clients at work, faults from a seed, and the history of all that."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from presage.errors import ServiceError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.client.waiting import TERMINAL_PHASES
from tests.history.checker.laws import SLACK_S
from tests.history.record import Recorder
from tests.history.runner.clients import Client, Jobs, Process, Watcher, watched_to
from tests.history.runner.faults import Faults, Spans
from tests.history.runner.nemesis import Nemesis
from tests.history.runner.rig import Rig, clean
from tests.support.waiting import is_true_within

HISTORY = "history.jsonl"
_HEALED_S = 120.0  # for what was done to be taken back
_OVER_S = 240.0  # for every job to be over then: part of the law that none is lost
_CAUGHT_UP_S = 60.0
LONG_JOBS = 0.3


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is like.

    Attributes
    ----------
    faults : int
        How many are injected.
    gap_s : float
        Mean time from one to the next.
    isolated : bool
        Use network namespaces and small file systems, as root.
    may_be_lost : bool
        Whether some faults last until the controller gives a node up.
    """

    seed: int
    faults: int = 110
    gap_s: float = 0.4
    lease_s: float = 3.0
    grace_s: float = 1.0
    nodes: int = 3
    clients: int = 4
    watchers: int = 2
    most_open: int = 12
    isolated: bool = True
    may_be_lost: bool = True


def run(folder: Path, settings: Settings, progress: Callable[[str], None] = lambda _: None) -> Path:
    """Run a cluster under faults; the file with its history.

    The folder is replaced. Whatever happens, nothing of the run is left on the machine; what a
    run that was killed left there is taken away first.
    """
    work = folder / "work"
    clean(work)
    work.mkdir(parents=True)
    recorder = Recorder(folder / HISTORY)
    rig = Rig(
        work, recorder, lease_s=settings.lease_s, nodes=settings.nodes, isolated=settings.isolated
    )
    recorder.write(
        "meta", "harness", "run", {**asdict(settings), "missing": rig.missing, "slack_s": SLACK_S}
    )
    try:
        rig.up()
        _Run(rig, recorder, settings, progress).play()
    finally:
        recorder.append(rig.ledger_entries())
        recorder.write("final", "harness", "left on the machine", rig.close())
        recorder.close()
        shutil.rmtree(folder / "logs", ignore_errors=True)
        (folder / "logs").mkdir()
        for log in work.glob("*.log"):
            shutil.copy(log, folder / "logs")
        clean(work)
    return recorder.path


class _Run:
    """The clients, the nemesis, and the end of a run."""

    def __init__(
        self, rig: Rig, recorder: Recorder, settings: Settings, progress: Callable[[str], None]
    ) -> None:
        self._rig, self._recorder, self._settings = rig, recorder, settings
        self._progress = progress
        self._stopped, self._unwatched = threading.Event(), threading.Event()
        draw = random.Random(settings.seed)
        lost_s = settings.lease_s + settings.grace_s + SLACK_S
        spans = Spans(settings.lease_s, lost_s, settings.may_be_lost)
        self._operator = Process("operator", rig.client()[0], recorder)
        self._faults = Faults(rig, draw, spans, self._operator)
        self._nemesis = Nemesis(rig, self._faults, recorder, draw)
        self._clients = self._make_clients()
        self._watchers = self._make_watchers()

    def play(self) -> None:
        """Work under faults; heal; wait until all jobs are over; read everything again."""
        for thread in (*self._clients, *self._watchers):
            thread.start()
        try:
            self._nemesis.run(self._settings.faults, self._settings.gap_s, self._said)
        finally:
            self._heal()
        self._end()

    def _said(self, begun: int) -> None:
        if begun % 10 == 0:
            self._progress(f"{begun} faults")

    def _heal(self) -> None:
        self._progress("healing")
        if not self._nemesis.heal(_HEALED_S):
            self._recorder.write("note", "harness", "not healed", _HEALED_S)
        for link in (*self._rig.links.values(), *self._faults.client_links):
            self._rig.reset(link)
        time.sleep(self._settings.lease_s)
        self._stopped.set()
        for client in self._clients:
            client.join()

    def _end(self) -> None:
        client, _ = self._rig.client()
        self._progress("waiting for the jobs")

        def is_over() -> bool:
            self._nemesis.look()
            return self._undrained(client) and _all_over(client)

        if not is_true_within(is_over, _OVER_S, pause_s=0.5):
            self._recorder.write("note", "harness", "jobs are not over", _OVER_S)
        listings = []

        def is_listed() -> bool:
            listings.append(Process("final", client, self._recorder).list())
            return listings[-1] is not None

        is_true_within(is_listed, _CAUGHT_UP_S, pause_s=0.2)
        if (found := listings[-1]) is not None:
            self._catch_up(client, found.last_entry)
        self._unwatched.set()
        left = self._rig.left_of_tasks(self._settings.lease_s + self._settings.grace_s + SLACK_S)
        self._recorder.write("final", "harness", "left of tasks", left)

    def _catch_up(self, client: ClusterClient, last_entry: int) -> None:
        """Let watchers see what there is, and one watch it all from the beginning."""
        if not watched_to(self._recorder, client, last_entry, _CAUGHT_UP_S):
            self._recorder.write("note", "harness", "not watched to its end", last_entry)
        if not is_true_within(
            lambda: all(one.last_entry >= last_entry for one in self._watchers), _CAUGHT_UP_S
        ):
            self._recorder.write("note", "harness", "watchers are behind", last_entry)

    def _undrained(self, client: ClusterClient) -> bool:
        """Whether no node is drained any more; recorded, as it changes what others read."""
        try:
            drained = [node.name for node in client.list([], limit=1).nodes if node.drained]
        except ServiceError:
            return False
        undone = [self._operator.drain(node, undo=True) for node in drained]
        return all(undone)

    def _make_clients(self) -> list[Client]:
        long = LONG_JOBS if self._settings.may_be_lost else 0.0
        ledger, grace_s = self._rig.cluster.ledger, self._settings.grace_s
        jobs = Jobs(ledger, grace_s, self._settings.most_open, long)
        made = []
        for number in range(self._settings.clients):
            client, link = self._rig.client()
            self._faults.client_links.append(link)
            process = Process(f"c{number}", client, self._recorder)
            seed = f"{self._settings.seed}-{number}"
            made.append(Client(process, jobs, seed, self._rig.nodes, self._stopped))
        return made

    def _make_watchers(self) -> list[Watcher]:
        made = []
        for number in range(self._settings.watchers):
            client, link = self._rig.client()
            self._faults.client_links.append(link)
            made.append(Watcher(f"w{number}", client, self._recorder, self._unwatched))
        return made


def _all_over(client: ClusterClient) -> bool:
    try:
        return all(row.phase in TERMINAL_PHASES for row in client.list(ended=True).jobs)
    except ServiceError:
        return False
