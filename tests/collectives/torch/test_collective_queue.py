"""Queue of collectives without gloo: order, threads, errors and end (requirement I5)."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroup

from presage.collectives.torch.backend import IncProcessGroup
from presage.collectives.torch.collective_queue import CollectiveQueue
from presage.collectives.torch.errors import CollectiveError
from tests.support.waiting import stays_true, wait_until


class Work:
    """Work that ends when the test says so."""

    def __init__(self, error=None):
        self.error, self.has_ended = error, False
        self.future: Any = torch.futures.Future()

    def end(self):
        self.has_ended = True
        self.future.set_result(None)

    def is_completed(self):
        return self.has_ended

    def get_future(self):
        return self.future

    def wait(self):
        if self.error:
            raise self.error


class Collective:
    """Collective that notes in ``log`` the thread that starts and ends it."""

    order, size_bytes, has_begun = 0, 0, True

    def __init__(self, name, log, *, error=None, is_at_once=True, start_error=None):
        self.name, self.log, self.is_at_once, self.tensors = name, log, is_at_once, []
        self.work: Any = Work(error)
        self.start_error = start_error

    def start_at_once(self):
        return self.start() if self.is_at_once else None

    def start(self):
        self.log.append((f"start {self.name}", threading.current_thread().name))
        if self.start_error:
            raise self.start_error
        return self.work

    def end(self):
        self.log.append((f"end {self.name}", threading.current_thread().name))


class GroupOfOne(IncProcessGroup):
    """Group of one rank; a collective that need not wait in the queue has the given work."""

    def __init__(self, work: Any, *, nccl: Any = None, arbiter: Any = None, driver: Any = None):
        unused: Any = None
        ProcessGroup.__init__(self, 0, 1)  # type: ignore[call-arg]
        self._order, self._cuda, self._arbiter, self._driver = 0, nccl, arbiter, driver
        self._least_bytes, self._min_bytes, self._max_bytes = 0, 0, 1 << 20
        self._equal_sizes, self._all_reduce, self._can_skip = {16: 1}, unused, unused
        self._start_if_idle = lambda *_: work


@pytest.fixture
def log():
    return []


@pytest.fixture
def inc_queue():
    queue = CollectiveQueue()
    yield queue
    queue.close()


def launch(tensors, options):
    raise AssertionError("a collective was started")


def start_if_idle(queue, launch=launch):
    return queue.start_if_idle(launch, [], None, lambda mask: True, 1)


def test_i5_exactly_one_collective_is_under_way_and_the_others_follow_in_order(inc_queue, log):
    collectives = [Collective(name, log) for name in "abc"]
    handles = [inc_queue.submit(collective) for collective in collectives]

    for index, collective in enumerate(collectives):
        wait_until(lambda: len(log) == 2 * index + 1)  # noqa: B023
        assert start_if_idle(inc_queue) is None
        assert stays_true(lambda: len(log) == 2 * index + 1, 0.02)  # noqa: B023
        collective.work.end()
    handles[-1].wait()

    assert [entry for entry, _ in log] == [
        f"{what} {n}" for n in "abc" for what in ("start", "end")
    ]


def test_i5_an_idle_queue_starts_in_the_thread_of_the_caller(inc_queue, log):
    collective = Collective("a", log)

    assert inc_queue.submit(collective) is collective.work
    assert log == [("start a", threading.current_thread().name)]
    collective.work.end()


def test_i5_the_callback_only_signals_the_thread_of_the_queue(inc_queue, log):
    first, second = Collective("a", log), Collective("b", log)
    inc_queue.submit(first)
    handle = inc_queue.submit(second)

    ending = threading.Thread(target=first.work.end, name="ends the first")
    with inc_queue._lock:  # a callback that needed the lock would not return
        ending.start()
        ending.join(60)
        assert not ending.is_alive()
    second.work.end()
    handle.wait()

    assert {thread for entry, thread in log if entry != "start a"} == {"inc-queue"}


def test_i5_the_queue_continues_after_a_collective_that_had_not_begun(inc_queue, log):
    first = Collective("a", log, is_at_once=False, start_error=RuntimeError("no memory"))
    first.has_begun = False

    with pytest.raises(RuntimeError, match="no memory"):
        inc_queue.submit(first).wait()

    second = Collective("b", log)
    assert inc_queue.submit(second) is second.work
    second.work.end()


def test_after_a_failure_nothing_is_started(inc_queue, log):
    failing = Collective("a", log, is_at_once=False, start_error=RuntimeError("no vote"))
    with pytest.raises(RuntimeError, match="no vote"):
        inc_queue.submit(failing).wait()

    with pytest.raises(CollectiveError, match="earlier collective failed: no vote"):
        start_if_idle(inc_queue)
    with pytest.raises(CollectiveError, match="earlier collective failed: no vote"):
        inc_queue.submit(Collective("b", log))


def test_what_waits_fails_with_the_collective_before_it(inc_queue, log):
    failing = Collective("a", log, error=RuntimeError("connection closed"))
    inc_queue.submit(failing)
    handle = inc_queue.submit(Collective("b", log))

    failing.work.end()

    with pytest.raises(CollectiveError, match="connection closed"):
        handle.wait()
    assert [entry for entry, _ in log] == ["start a"]


def test_a_closed_queue_starts_nothing(log):
    queue = CollectiveQueue()
    queue.close()

    with pytest.raises(CollectiveError, match="destroyed"):
        start_if_idle(queue)
    with pytest.raises(CollectiveError, match="destroyed"):
        queue.submit(Collective("a", log))


def test_a_queue_closes_after_a_collective_that_ended_with_an_error(log):
    before = set(threading.enumerate())
    queue = CollectiveQueue()
    failing = Collective("a", log, error=RuntimeError("connection closed"))
    queue.submit(failing)
    failing.work.end()

    queue.end_finished()  # by the control thread, which goes on
    queue.close()

    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("is_idle", [True, False])
def test_tensors_of_a_gpu_never_run_by_gloo(is_idle):
    tensor: Any = SimpleNamespace(
        is_cuda=True, is_cpu=False, dtype=torch.float32, layout=torch.strided,
        numel=lambda: 10, element_size=lambda: 4,
    )  # fmt: skip
    gloo = "gloo" if is_idle else None
    nccl = SimpleNamespace(allreduce=lambda *_: "nccl")

    work: Any = GroupOfOne(gloo, nccl=nccl).allreduce([tensor], AllreduceOptions())
    assert work == "nccl"

    with pytest.raises(CollectiveError, match="allreduce of a tensor of a GPU needs NCCL"):
        GroupOfOne(gloo).allreduce([tensor], AllreduceOptions())
