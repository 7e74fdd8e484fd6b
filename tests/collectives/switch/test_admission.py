"""Contract of both aggregators: a controlled switch sums only for jobs that are admitted."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from presage.collectives.core.messages import Admission, Admitted
from presage.collectives.switch.client import statistics
from presage.collectives.switch.control import SwitchControl
from presage.collectives.switch.errors import (
    ClientClosedError,
    NotAdmittedError,
    NotControlledError,
    OldAdmissionError,
    OldEpochError,
    RefusedError,
    SwitchLostError,
)
from presage.collectives.switch.protocol import Code, Header, Kind, token_digest
from tests.collectives.switch.ranks import RawRank, connect, reduce, values_of, wait_for


@pytest.fixture
def switch(start):
    """Controlled aggregator with small chunks."""
    return start(controlled=True, chunk_bytes=64, window=3, lease_ms=60_000)


@pytest.fixture
def control(switch):
    with SwitchControl(switch.host, switch.port) as found:
        yield found


def admission(control, token=1, **floors):
    return Admission(control.hello().incarnation, token, tuple(floors.items()))


def kinds(errors):
    return [type(error) for error in errors]


def reported(switch):
    return json.loads(statistics(switch.host, switch.port))


def test_i7_controlled_switch_sums_for_no_job_before_the_first_admission(switch, control):
    clients = connect(switch)

    errors = reduce(clients, values_of(2, 100), number=1)

    assert kinds(errors) == [NotAdmittedError] * 2
    assert "the controller does not admit job job" in str(errors[0])
    assert reported(switch)["slots_in_use"] == 0
    wanted = admission(control, job=0)
    assert control.admit(wanted) == Admitted(wanted.incarnation, 1)
    assert reduce(clients, values_of(2, 100), number=2) == [None, None]


def test_i7_job_that_is_not_admitted_takes_no_slot(switch, control):
    control.admit(admission(control, known=0))
    rank = RawRank(switch, 0, job="unknown")
    known, unknown = connect(switch, "known"), RawRank(switch, 1, job="unknown")

    for one in (rank, unknown):
        one.begin(1, 10)
        header, _ = one.receive()
        assert (header.kind, header.code) == (Kind.REFUSED, Code.NOT_ADMITTED)

    assert reported(switch)["slots_in_use"] == 0
    assert reduce(known, values_of(2, 100)) == [None, None]


def test_i7_epoch_below_the_floor_of_the_job_is_refused(switch, control):
    control.admit(admission(control, first=5, second=0))
    first, second = connect(switch, "first"), connect(switch, "second")

    errors = reduce(first, values_of(2, 100), number=1, epoch=4)

    assert kinds(errors) == [OldEpochError] * 2
    assert "epoch 4 is below 5" in str(errors[0])
    assert reduce(first, values_of(2, 100), number=2, epoch=5) == [None, None]
    assert reduce(second, values_of(2, 100), number=1, epoch=1) == [None, None]


@pytest.mark.parametrize(
    ("floors", "error"), [({"other": 0}, NotAdmittedError), ({"job": 2, "other": 0}, OldEpochError)]
)
def test_i7_admission_ends_the_running_all_reduce_that_it_excludes(switch, control, floors, error):
    control.admit(admission(control, job=0, other=0))
    early, late = connect(switch)
    others = connect(switch, "other")
    buffers = values_of(2, 100)
    before = [buffer.copy() for buffer in buffers]
    found = []
    waiting = threading.Thread(target=lambda: found.extend(reduce([early], buffers[:1])))
    waiting.start()
    wait_for(switch, lambda state: state["slots_in_use"] == 1)

    control.admit(admission(control, 2, **floors))

    assert reported(switch)["slots_in_use"] == 0
    assert reduce(others, values_of(2, 100)) == [None, None]
    waiting.join()
    found += reduce([late], buffers[1:])  # the refusal holds for all ranks
    assert kinds(found) == [error] * 2
    assert all((buffer == old).all() for buffer, old in zip(buffers, before, strict=True))


def test_i7_running_all_reduce_that_stays_admitted_continues(switch, control):
    control.admit(admission(control, job=1))
    early, late = connect(switch)
    buffers = values_of(2, 100)
    waiting = threading.Thread(target=reduce, args=([early], buffers[:1]))
    waiting.start()
    wait_for(switch, lambda state: state["slots_in_use"] == 1)

    control.admit(admission(control, 2, job=1, other=3))

    assert reduce([late], buffers[1:]) == [None]
    waiting.join()
    assert (buffers[0] == buffers[1]).all()


def test_i7_admission_with_an_older_token_is_refused_and_changes_nothing(switch, control):
    control.admit(admission(control, 5, job=3))

    with pytest.raises(OldAdmissionError, match="a newer admission is in force"):
        control.admit(admission(control, 4, job=0, other=0))

    assert reported(switch)["floors"] == {"job": 3}
    assert control.admit(admission(control, 5, job=3)).token == 5  # repeated: the answer was lost


@pytest.mark.parametrize("floors", [{"job": 2}, {"job": 4}, {}, {"job": 3, "other": 0}])
def test_i7_floor_does_not_go_back_or_change_without_a_newer_token(switch, control, floors):
    control.admit(admission(control, 5, job=3))

    with pytest.raises(OldAdmissionError, match="another admission with this token"):
        control.admit(admission(control, 5, **floors))
    assert reported(switch)["floors"] == {"job": 3}

    control.admit(admission(control, 6, job=2))  # an aborted round restores its floors
    assert reported(switch)["floors"] == {"job": 2}


@pytest.mark.parametrize("difference", [-1, 1])
def test_i7_admission_for_another_start_is_refused(switch, control, difference):
    hello = control.hello()

    with pytest.raises(OldAdmissionError, match="another start of the switch"):
        control.admit(Admission(hello.incarnation + difference, 9, (("job", 0),)))

    assert reported(switch)["floors"] == {}


def test_i7_restarted_switch_admits_no_job_until_floors_arrive(start, switch, control):
    old = admission(control, 3, job=2)
    control.admit(old)
    switch.process.kill()
    switch.process.wait()
    with pytest.raises(SwitchLostError):
        control.hello()
    again = start(port=switch.port, controlled=True)

    assert control.hello().incarnation > old.incarnation
    clients = connect(again, epoch=2)
    assert kinds(reduce(clients, values_of(2, 9), number=7, epoch=2)) == [NotAdmittedError] * 2
    with pytest.raises(OldAdmissionError, match="another start"):
        control.admit(old)
    assert kinds(reduce(clients, values_of(2, 9), number=8, epoch=2)) == [NotAdmittedError] * 2
    control.admit(admission(control, 4, job=2))
    assert kinds(reduce(clients, values_of(2, 9), number=9, epoch=1)) == [OldEpochError] * 2
    assert reduce(clients, values_of(2, 9), number=10, epoch=2) == [None, None]


def test_i7_switch_whose_clock_went_back_takes_a_higher_incarnation(start):
    switch = start(controlled=True, incarnation=70)
    with SwitchControl(switch.host, switch.port) as control:
        control.admit(Admission(70, 9, (("job", 0),)))
        assert control.hello(known=70).incarnation == 70
        assert reported(switch)["floors"] == {"job": 0}

        assert control.hello(known=99).incarnation == 100

        assert reported(switch)["floors"] == {} and reported(switch)["admission"] == 0
        with pytest.raises(OldAdmissionError):
            control.admit(Admission(70, 10, (("job", 0),)))
        control.admit(Admission(100, 1, (("job", 0),)))
        assert control.hello().incarnation == 100


@pytest.mark.parametrize("forged", ["", "wrong"])
def test_forged_token_of_the_controller_is_refused(start, forged):
    switch = start(controlled=True, token="secret")
    with SwitchControl(switch.host, switch.port, forged) as control:
        for request in (control.hello, lambda: control.admit(Admission(1, 1, ()))):
            with pytest.raises(RefusedError, match="the token is not the switch's") as caught:
                request()
            assert caught.value.code == Code.BAD_TOKEN
    with SwitchControl(switch.host, switch.port, "secret") as control:
        control.admit(admission(control, job=0))
        clients = connect(switch, switch_token="secret")
        assert reduce(clients, values_of(2, 100)) == [None, None]


@pytest.mark.parametrize("size", [0, 40, 5000, 2**32 - 1])
def test_forged_admission_without_a_greeting_is_refused(switch, control, size):
    forger = RawRank(switch)
    forger.send_header(Header(Kind.ADMISSION, size=size, number=9, epoch=1))

    header, _ = forger.receive()

    assert (header.kind, header.code) == (Kind.REFUSED, Code.BAD_TOKEN)
    assert reported(switch)["admission"] == 0
    assert control.hello()


def test_admission_of_a_rank_is_refused(switch):
    rank = RawRank(switch, 0)
    rank.send(Header(Kind.ADMISSION, number=9, epoch=1))

    assert rank.receive()[0].code == Code.BAD_TOKEN


@pytest.mark.parametrize(
    "payload",
    [
        bytes(8),
        bytes(8) + b"\x05job",
        bytes(8) + b"\x00",
        bytes(8) + b"\x03a b",
        bytes(8) + b"\x41" + b"x" * 65,
        b"\xff" * 8 + b"\x03job",
        (bytes(8) + b"\x03job") * 2,
        bytes(8) + b"\x01b" + bytes(8) + b"\x01a",
        b"\x00" * 73 * 300,
    ],
)
def test_malformed_admission_is_refused_and_changes_nothing(switch, control, payload):
    control.admit(admission(control, job=1))
    raw = RawRank(switch)
    raw.send(Header(Kind.GREET), token_digest(""))
    header, _ = raw.receive()
    raw.send(Header(Kind.ADMISSION, number=9, epoch=header.epoch), payload)

    assert raw.receive()[0].code == Code.BAD_REQUEST
    assert reported(switch)["floors"] == {"job": 1}


def test_admission_has_at_most_the_jobs_of_the_switch(start):
    switch = start(controlled=True, max_jobs=3)
    with SwitchControl(switch.host, switch.port) as control:
        control.admit(admission(control, 1, a=0, b=0, c=0))
        with pytest.raises(RefusedError) as caught:
            control.admit(admission(control, 2, a=0, b=0, c=0, d=0))
        assert caught.value.code == Code.BAD_REQUEST
        assert control.admit(admission(control, 2, a=0)).token == 2


def test_admission_of_many_jobs_with_long_names(switch, control):
    names = {f"{number:064d}": number for number in range(256)}

    control.admit(admission(control, **names))

    assert reported(switch)["floors"] == names


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "größe"])
def test_invalid_job_name_of_an_admission_is_an_error_of_the_caller(control, name):
    with pytest.raises(ValueError, match="is invalid"):
        control.admit(Admission(1, 1, ((name, 0),)))
    with pytest.raises(ValueError, match="out of range"):
        control.admit(Admission(1, -1, ()))


def test_switch_without_the_option_serves_all_jobs_and_has_no_controller(start):
    switch = start()
    assert reduce(connect(switch), values_of(2, 100)) == [None, None]

    with SwitchControl(switch.host, switch.port) as control, pytest.raises(NotControlledError):
        control.hello()


def test_i4_control_of_a_silent_switch_ends_after_the_time_out(switch):
    with SwitchControl(switch.host, switch.port, timeout_s=0.3) as control:
        wanted = admission(control, job=0)
        os.kill(switch.process.pid, signal.SIGSTOP)
        start_s = time.monotonic()
        try:
            with pytest.raises(SwitchLostError):
                control.admit(wanted)
        finally:
            os.kill(switch.process.pid, signal.SIGCONT)
        assert time.monotonic() - start_s < 3
        assert control.admit(wanted).token == 1  # a new connection; the admission may be there


def test_control_that_is_closed_during_a_request_ends_it(switch):
    control = SwitchControl(switch.host, switch.port, timeout_s=30)
    wanted = admission(control, job=0)
    os.kill(switch.process.pid, signal.SIGSTOP)
    closing = threading.Timer(0.2, control.close)
    closing.start()
    start_s = time.monotonic()
    try:
        with pytest.raises(ClientClosedError):
            control.admit(wanted)
    finally:
        os.kill(switch.process.pid, signal.SIGCONT)
    assert time.monotonic() - start_s < 5
    with pytest.raises(ClientClosedError):
        control.hello()


def test_i7_threads_that_admit_leave_the_newest_admission(switch, control):
    incarnation = control.hello().incarnation
    controls = [SwitchControl(switch.host, switch.port) for _ in range(4)]

    def admit(token):
        with suppress(OldAdmissionError):
            one = controls[token % 4] if token % 5 else control
            one.admit(Admission(incarnation, token, (("job", token),)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(admit, random.Random(0).sample(range(1, 200), 199)))
    for one in controls:
        one.close()

    assert reported(switch)["floors"] == {"job": 199}


def test_control_of_no_switch_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with SwitchControl("127.0.0.1", port) as control, pytest.raises(SwitchLostError):
        control.hello()


def test_idle_controller_stays_connected(switch, control):
    control.hello()
    before = reported(switch)["connections"]
    time.sleep(6.5)  # longer than a connection that says nothing is kept

    assert reported(switch)["connections"] == before
    assert control.admit(admission(control, job=0))
