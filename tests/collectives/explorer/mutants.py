"""Mutants: the machines without one of their guards, and the law that each of them breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from presage.collectives.core import in_band_controller, rank, switch, two_phase_controller
from presage.collectives.core import messages as m
from presage.collectives.core.in_band import InBandAgreement
from presage.collectives.core.rank import Phase
from presage.collectives.core.two_phase import TwoPhaseAgreement
from tests.collectives.explorer.configuration import Configuration

A = {"a": "II", "b": "RR"}
B = {"a": "RR", "b": "II"}
BOTH = {"a": "II", "b": "II"}
REVOKE = ({"a": "RR"},)

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """One removed guard.

    Attributes
    ----------
    guard : str
        What is removed.
    remove : callable
        Patches the machines.
    config : Configuration
        Configuration that needs the guard.
    laws : tuple of int
        Laws of which the first broken one is one.
    is_slow : bool
        Whether the search takes more than a few seconds.
    """

    guard: str
    remove: Patch
    config: Configuration
    laws: tuple[int, ...]
    is_slow: bool = False


def use_own_newest_view(patch: pytest.MonkeyPatch) -> None:
    original = InBandAgreement.complete

    def complete(self: InBandAgreement, member: m.Member, number: int, min_epoch: int) -> Any:
        return original(self, member, number, self.newest_epoch)

    patch.setattr(InBandAgreement, "complete", complete)


def send_only_the_newest_view(patch: pytest.MonkeyPatch) -> None:
    original = in_band_controller._updates

    def updates(records: Any) -> tuple[m.Message, ...]:
        return tuple(
            update._replace(views=update.views[-1:])
            for update in original(records)
            if isinstance(update, m.ViewUpdate)
        )

    patch.setattr(in_band_controller, "_updates", updates)


def grant_without_fence(patch: pytest.MonkeyPatch) -> None:
    original = in_band_controller._begin_fencing

    def begin(state: Any) -> Any:
        step = original(state)
        granted = in_band_controller._publish_target(step.state)
        return granted._replace(messages=step.messages + granted.messages)

    patch.setattr(in_band_controller, "_begin_fencing", begin)


def fence_without_waiting(patch: pytest.MonkeyPatch) -> None:
    original = in_band_controller.propose

    def propose(state: Any, plans: Any) -> Any:
        step = original(state, plans)
        following = in_band_controller.time_out(step.state)
        return following._replace(messages=step.messages + following.messages)

    patch.setattr(in_band_controller, "propose", propose)


def accept_old_epochs(patch: pytest.MonkeyPatch) -> None:
    original = switch._is_stale

    def is_stale(state: Any, message: m.Contribution) -> bool:
        return original(state, message._replace(epoch=10**6))

    patch.setattr(switch, "_is_stale", is_stale)


def ignore_slots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(switch, "_has_free_slot", lambda state, job: True)


def accept_any_admission(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(switch, "_is_current", lambda state, message: message.token >= state.token)


def decide_alone_after_time_out(patch: pytest.MonkeyPatch) -> None:
    def vote(state: rank.RankState) -> rank.Step:
        return rank.Step(replace(state, phase=Phase.RING))

    patch.setattr(rank, "vote", vote)


def accept_result_after_vote(patch: pytest.MonkeyPatch) -> None:
    original = rank.receive

    def receive(state: rank.RankState, message: m.Message) -> rank.Step:
        is_voting = state.phase is Phase.VOTING
        if is_voting and isinstance(message, m.Result) and message.number == state.number:
            state = replace(state, phase=Phase.INC)
        return original(state, message)

    patch.setattr(rank, "receive", receive)


def give_no_result_to_peers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rank, "_answer", lambda state, message: ())


def wait_for_the_switch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rank, "vote", rank.Step)


def lock_does_not_wait_for_the_switch(patch: pytest.MonkeyPatch) -> None:
    original = TwoPhaseAgreement._acknowledge

    def acknowledge(self: Any, member: m.Member, *, started: int, is_on_switch: bool) -> Any:
        return original(self, member, started=started, is_on_switch=False)

    patch.setattr(TwoPhaseAgreement, "_acknowledge", acknowledge)


def unlock_alone_after_time_out(patch: pytest.MonkeyPatch) -> None:
    def time_out(self: Any, member: m.Member, *, started: int) -> Any:
        return (self._unlock_aborted() if self.locked else self), ()

    patch.setattr(TwoPhaseAgreement, "time_out", time_out)


def wait_for_the_controller(patch: pytest.MonkeyPatch) -> None:
    def time_out(self: Any, member: m.Member, *, started: int) -> Any:
        return self, ()

    patch.setattr(TwoPhaseAgreement, "time_out", time_out)


def forget_aborted_tags(patch: pytest.MonkeyPatch) -> None:
    original = TwoPhaseAgreement._unlock_aborted

    def unlock(self: Any) -> Any:
        return replace(original(self), aborted=0)

    def update(self: Any, member: m.Member, message: m.Update) -> Any:
        done = m.Done(member.job, member.rank, message.tag)
        return self._apply(message.view, message.tag), (done,)

    patch.setattr(TwoPhaseAgreement, "_unlock_aborted", unlock)
    patch.setattr(TwoPhaseAgreement, "_update", update)


def wait_for_ranks_of_a_job_that_has_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        two_phase_controller, "forget", lambda state, job: two_phase_controller.Step(state)
    )


def do_not_compare_numbers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(two_phase_controller, "_has_equal_numbers", lambda state: True)


def update_without_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(two_phase_controller, "_begin_fencing", two_phase_controller._update)


def never_resend(patch: pytest.MonkeyPatch) -> None:
    for module in (in_band_controller, two_phase_controller):
        patch.setattr(module, "resend", module.Step)


def answer_twice(patch: pytest.MonkeyPatch) -> None:
    original = TwoPhaseAgreement._unlock_aborted
    patch.setattr(
        TwoPhaseAgreement,
        "_unlock_aborted",
        lambda self: replace(original(self), exchanged=frozenset()),
    )


def _in_band(plans: Any, initial: Any, **options: Any) -> Configuration:
    return Configuration("mutant", "in_band", plans, initial, **options)


def _two_phase(plans: Any, initial: Any, **options: Any) -> Configuration:
    return Configuration("mutant", "two_phase", plans, initial, **options)


SMALL = {"a": 2, "b": 1}
MUTANTS = (
    Mutant(
        "all ranks use the smallest epoch, not their newest",
        use_own_newest_view,
        _in_band(REVOKE, {"a": "II"}, sizes={"a": 2}),
        (1,),
    ),
    Mutant(
        "an update has all views that may not have been adopted",
        send_only_the_newest_view,
        _in_band(
            ({"a": "II"}, {"a": "RI"}, {"a": "RII"}),
            {"a": "RR"},
            sizes={"a": 2},
            numbers=3,
            early=2,
        ),
        (1,),
        is_slow=True,
    ),
    Mutant(
        "a grant waits for the fence of the revocation",
        grant_without_fence,
        _in_band((B,), A, sizes=SMALL),
        (6,),
        is_slow=True,
    ),
    Mutant(
        "a fence waits for the adoption of the revocation",
        fence_without_waiting,
        _in_band((B,), A, early=None),
        (6,),
    ),
    Mutant(
        "the switch refuses old epochs",
        accept_old_epochs,
        _in_band((B,), A, sizes=SMALL, early=2),
        (6,),
        is_slow=True,
    ),
    Mutant("the switch has slots", ignore_slots, _in_band((BOTH,), BOTH, early=0), (2,)),
    Mutant(
        "a restarted switch ignores old admissions",
        accept_any_admission,
        _in_band(
            (),
            B,
            sizes={"a": 2, "b": 1},
            fault="switch",
            early=0,
            delayed=(
                m.Admission(1, 0, (("a", 0), ("b", 0))),
                m.Contribution("a", 0, 2, number=0, epoch=0, newest=0),
            ),
        ),
        (6,),
    ),
    Mutant(
        "a rank decides nothing alone after a time-out",
        decide_alone_after_time_out,
        _in_band((), {"a": "II"}, sizes={"a": 2}),
        (1,),
    ),
    Mutant(
        "a rank that has voted accepts no result",
        accept_result_after_vote,
        _in_band((), {"a": "II"}, sizes={"a": 2}),
        (1,),
    ),
    Mutant(
        "a rank that has the result gives it to its peers",
        give_no_result_to_peers,
        _in_band((), {"a": "II"}, sizes={"a": 2}, fault="loss"),
        (3, 5),
    ),
    Mutant(
        "a rank that is refused continues",
        wait_for_the_switch,
        _in_band((), BOTH, early=0),
        (3, 5),
    ),
    Mutant(
        "lost views are sent again",
        never_resend,
        _in_band(({"a": "RR"}, {"a": "II"}), {"a": "II"}, sizes={"a": 2}, fault="loss", early=0),
        (7,),
    ),
    Mutant(
        "a rank acknowledges only when it has nothing on the switch",
        lock_does_not_wait_for_the_switch,
        _two_phase(REVOKE, {"a": "II"}, sizes={"a": 2}, early=None),
        (6,),
    ),
    Mutant(
        "a rank that has acknowledged does not unlock alone",
        unlock_alone_after_time_out,
        _two_phase(REVOKE, {"a": "II"}, sizes={"a": 2}),
        (1,),
    ),
    Mutant(
        "ranks ask their peers when the controller is silent",
        wait_for_the_controller,
        _two_phase(REVOKE, {"a": "II"}, sizes={"a": 2}, fault="controller", early=0),
        (3, 4),
    ),
    Mutant(
        "late updates of aborted rounds are ignored",
        forget_aborted_tags,
        _two_phase(({"a": "II"},), {"a": "RR"}, sizes={"a": 2}, early=3),
        (1,),
    ),
    Mutant(
        "the ranks of a job have started the same AllReduce",
        do_not_compare_numbers,
        _two_phase(({"a": "II"},), {"a": "RR"}, sizes={"a": 2}, early=0),
        (1,),
    ),
    Mutant(
        "the controller waits for no rank of a job that has left",
        wait_for_ranks_of_a_job_that_has_left,
        _two_phase((B, {"b": "II"}), A, sizes=SMALL, fault="rank", early=0),
        (7,),
        is_slow=True,
    ),
    Mutant(
        "an update waits for the fence",
        update_without_fence,
        _two_phase((B,), A, sizes=SMALL, tries=1, early=2),
        (6,),
        is_slow=True,
    ),
    Mutant(
        "lost messages of a round are sent again",
        never_resend,
        _two_phase(REVOKE, {"a": "II"}, sizes={"a": 2}, fault="loss", early=0),
        (3, 4, 5, 7),
    ),
    Mutant(
        "a rank takes part in an exchange once",
        answer_twice,
        _two_phase(
            REVOKE, {"a": "II"}, sizes={"a": 3}, fault="duplicate", tries=1, numbers=1, early=1
        ),
        (1,),
        is_slow=True,
    ),
)
