"""The extender's types are read and written as kube-scheduler writes and reads them.

The golden files follow k8s.io/kube-scheduler/extender/v1 types.go as Go's encoder spells it, with
null where a pointer, list or map is nil.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import InvalidRequestError
from presage.schedulers.kubernetes.extender.extender_json import (
    binding_result,
    filter_result,
    host_priorities,
    parse_bind_args,
    parse_filter_args,
    parse_preempt_args,
    preemption_result,
)
from presage.schedulers.kubernetes.extender.extender_types import (
    BindArgs,
    FilterArgs,
    FilterResult,
    HostPriority,
    PreemptArgs,
    Victims,
)

GOLDEN = Path(__file__).parent / "golden"
READERS = {
    "filter_args_names": parse_filter_args,
    "filter_args_nodes": parse_filter_args,
    "binding_args": parse_bind_args,
    "preemption_args_victims": parse_preempt_args,
    "preemption_args_meta_victims": parse_preempt_args,
}
KEYS = {
    "Pod", "Nodes", "NodeNames", "items", "PodName", "PodNamespace", "PodUID", "Node", "Pods",
    "UID", "NodeNameToVictims", "NodeNameToMetaVictims", "NumPDBViolations",
}  # fmt: skip


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_bytes())


def golden_bytes(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes()


def test_candidates_come_by_name_or_whole():
    names = parse_filter_args(golden_bytes("filter_args_names"))
    whole = parse_filter_args(golden_bytes("filter_args_nodes"))
    body = golden("filter_args_nodes")

    assert names == FilterArgs(body["Pod"], {"n0": None, "n1": None, "n2": None}, by_name=True)
    assert whole == FilterArgs(
        body["Pod"], dict(zip(names.nodes, body["Nodes"]["items"], strict=True)), by_name=False
    )
    assert list(whole.nodes) == list(names.nodes) == ["n0", "n1", "n2"]


@pytest.mark.parametrize("form", ["names", "nodes"])
def test_a_filter_answers_in_the_form_it_was_asked_in(form):
    asked = parse_filter_args(golden_bytes(f"filter_args_{form}"))
    result = FilterResult(
        ["n1"],
        failed={"n0": "its GPUs are kept for team-b"},
        unresolvable={"n2": "no GPU of this kind"},
    )

    assert filter_result(result, asked) == golden(f"filter_result_{form}")


def test_a_filter_that_failed_says_why():
    asked = parse_filter_args(golden_bytes("filter_args_names"))
    result = FilterResult([], error="the plan of team-a/resnet cannot be read")

    assert filter_result(result, asked) == golden("filter_result_error")


def test_scores_are_whole_numbers_from_0_to_10():
    scores = [HostPriority("n0", 0), HostPriority("n1", 10), HostPriority("n2", 3)]

    assert host_priorities(scores) == golden("host_priority_list")
    for wrong in (-1, 11, 2.0, True):
        with pytest.raises(ValueError, match=f"node 'n0': score={wrong}, must be an int from 0"):
            HostPriority("n0", wrong)  # type: ignore[arg-type]


def test_a_binding_is_asked_for_by_name_and_uid_and_answered_by_an_error_or_none():
    asked = parse_bind_args(golden_bytes("binding_args"))

    assert asked == BindArgs("resnet-0", "team-a", "5f2c", "n1")
    assert binding_result("") == golden("binding_result")
    assert binding_result("pod team-a/resnet-0 is already on n2") == golden("binding_result_error")


def test_victims_come_by_uid_or_whole_and_go_by_uid():
    whole = parse_preempt_args(golden_bytes("preemption_args_victims"))
    meta = parse_preempt_args(golden_bytes("preemption_args_meta_victims"))
    first, second = golden("preemption_args_victims")["NodeNameToVictims"]["n0"]["Pods"]

    assert meta == PreemptArgs(
        whole.pod, {"n0": Victims({"a1": None, "a2": None}, 1), "n1": Victims({})}
    )
    assert whole.victims == {"n0": Victims({"a1": first, "a2": second}, 1), "n1": Victims({})}
    for asked in (whole, meta):
        spared = {"n0": Victims({"a1": asked.victims["n0"].pods["a1"]}, 1)}
        assert preemption_result(spared) == golden("preemption_result")


def respelt(value: Any, random: Random) -> Any:
    """With keys in other cases, but for those inside of pods and nodes."""
    if isinstance(value, list):
        return [respelt(one, random) for one in value]
    if not isinstance(value, dict) or "spec" in value:
        return value
    return {
        "".join(random.choice([c.lower(), c.upper()]) for c in key)
        if key in KEYS
        else key: respelt(one, random)
        for key, one in value.items()
    }


@pytest.mark.parametrize("name", READERS)
@given(seed=st.integers(0, 2**32))
def test_keys_are_read_in_any_case(name, seed):
    other = json.dumps(respelt(golden(name), Random(seed))).encode()

    assert READERS[name](other) == READERS[name](golden_bytes(name))


@pytest.mark.parametrize("name", READERS)
def test_keys_nobody_knows_are_ignored_and_of_alike_ones_the_last_counts(name):
    body = golden(name)
    first = next(iter(body))
    odd = {first.upper(): None, "Later": {"Pod": 1}, **body}

    assert READERS[name](json.dumps(odd).encode()) == READERS[name](golden_bytes(name))


POD = '{"metadata": {"name": "p"}}'


@pytest.mark.parametrize(
    ("read", "body", "said"),
    [
        (parse_filter_args, "", "the body is not valid JSON .*; send ExtenderArgs"),
        (parse_filter_args, '{"Pod": NaN}', "NaN is not a JSON number"),
        (parse_filter_args, "[" * 100_000, "the body is not valid JSON"),
        (parse_filter_args, "[]", "the body, ExtenderArgs, is a list; send an object"),
        (parse_filter_args, "null", "the body, ExtenderArgs, is missing or null"),
        (parse_filter_args, f'{{"Pod": {POD}}}', "send Nodes or NodeNames, not neither"),
        (
            parse_filter_args,
            f'{{"Pod": {POD}, "nodes": {{}}, "nodenames": []}}',
            "send Nodes or NodeNames, not both",
        ),
        (parse_filter_args, '{"NodeNames": []}', "Pod is missing or null; send an object"),
        (parse_filter_args, '{"Pod": "p", "NodeNames": []}', "Pod is a string; send an object"),
        (parse_filter_args, '{"Pod": {}, "NodeNames": []}', "Pod.metadata is missing or null"),
        (
            parse_filter_args,
            f'{{"Pod": {POD}, "NodeNames": ["n0", 1.5]}}',
            r"NodeNames\[1\] is a float; send a string",
        ),
        (
            parse_filter_args,
            f'{{"Pod": {POD}, "Nodes": {{"items": [{{"metadata": {{}}}}]}}}}',
            r"Nodes.items\[0\].metadata.name is missing or null; send a string",
        ),
        (parse_bind_args, '{"PodName": "p"}', "PodNamespace is missing or null; send a string"),
        (
            parse_preempt_args,
            f'{{"Pod": {POD}}}',
            "send NodeNameToVictims or NodeNameToMetaVictims",
        ),
        (
            parse_preempt_args,
            f'{{"Pod": {POD}, "NodeNameToMetaVictims": {{"n0": {{"Pods": [{{}}]}}}}}}',
            r"NodeNameToMetaVictims\['n0'\].Pods\[0\].UID is missing or null; send a string",
        ),
        (
            parse_preempt_args,
            f'{{"Pod": {POD}, "NodeNameToVictims": {{"n0": {{"NumPDBViolations": true}}}}}}',
            r"NodeNameToVictims\['n0'\].NumPDBViolations is a boolean; send an integer",
        ),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused_by_the_key_that_is_wrong(read, body, said):
    with pytest.raises(InvalidRequestError, match=said):
        read(body.encode())


def test_lists_that_go_has_nil_are_empty():
    pods = f'{{"Pod": {POD}, "NodeNameToVictims": {{"n0": {{"Pods": null}}}}}}'

    assert parse_filter_args(f'{{"Pod": {POD}, "Nodes": {{"items": null}}}}'.encode()).nodes == {}
    assert parse_preempt_args(pods.encode()).victims == {"n0": Victims({})}
