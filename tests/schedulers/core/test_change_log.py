"""Tests of the log of changed jobs, and of the order of running jobs."""

import random

from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.core.action import Action, Pause, Preempt, Resume, Start
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.job import Job
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.queue import Queue
from presage.schedulers.core.reports import change_log
from presage.schedulers.core.reports.change_log import ChangeLog
from presage.schedulers.core.reports.compute_usage import Usage
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State

GIB = 2**30


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 6))
def test_a_log_has_all_entries_since_a_number_or_says_that_it_has_not(reads, most):
    log = ChangeLog()
    written: list[str] = []
    before, change_log.MOST = change_log.MOST, most
    try:
        for read in reads:
            log.note(f"j{len(written)}")
            written.append(f"j{len(written)}")
            number = max(0, len(written) - read)
            found = log.since(number)
            assert log.end == len(written)
            assert found == written[number:] if found is not None else read > most
    finally:
        change_log.MOST = before


@given(st.randoms(use_true_random=False))
def test_changed_jobs_are_those_whose_status_or_reports_differ(rng: random.Random):
    ledger = Ledger(Cluster((Node("n", 4, "v100", GIB),)), Queue(lambda _job, _status: ()))
    progress, usage = Progress(), Usage()
    state = State(ledger, 0.0, progress, usage)
    for number in range(6):
        ledger.submit(Job(f"j{number}", 0.0), 0.0)

    def content():
        return {
            job_id: (ledger.status(job_id), *state.last_reports(job_id)) for job_id in ledger.jobs
        }

    for now_s in range(1, 12):
        mark, before = state.mark(), content()
        free = [one for one in ledger.cluster.full_allocations if not ledger.jobs_on(one.device)]
        gone = [one for one in ledger.running if rng.random() < 0.2]
        actions: list[Action] = [Preempt(one) for one in gone]
        actions += [Pause(one) for one in ledger.running if one not in gone and rng.random() < 0.1]
        actions += [Resume(one) for one in ledger.paused if rng.random() < 0.3]
        waiting = [job.job_id for job in ledger.pending]
        actions += [
            Start(one, (there,))
            for one, there in zip(waiting, free, strict=False)
            if rng.random() < 0.5
        ]
        ledger.apply(actions, float(now_s))
        for job_id in ledger.running:
            if rng.random() < 0.3:
                progress.report(job_id, 0.1, float(now_s), 0.01)
            if rng.random() < 0.3:
                usage.report(job_id, float(now_s), 500.0)
        changed = {one for one, found in content().items() if found != before[one]}
        noted = state.changed_since(mark)
        assert noted is not None
        assert changed <= noted
        numbers = [state.run_number(job_id) for job_id in state.running]
        assert numbers == sorted(numbers)
        assert state.changed_since(state.mark()) == set()
    assert State(ledger, 0.0, Progress(), usage).changed_since(mark) is None
