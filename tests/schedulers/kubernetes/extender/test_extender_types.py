"""JSON encoding of the extender's requests and responses, compared with golden files.

The golden files follow k8s.io/kube-scheduler/extender/v1 types.go as Go encodes it, with null for
nil pointers, lists and maps.
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
PARSERS = {
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


def test_candidates_are_names_or_complete_nodes():
    names = parse_filter_args(golden_bytes("filter_args_names"))
    complete = parse_filter_args(golden_bytes("filter_args_nodes"))
    body = golden("filter_args_nodes")

    assert names == FilterArgs(body["Pod"], {"n0": None, "n1": None, "n2": None}, by_name=True)
    assert complete == FilterArgs(
        body["Pod"], dict(zip(names.nodes, body["Nodes"]["items"], strict=True)), by_name=False
    )
    assert list(complete.nodes) == list(names.nodes) == ["n0", "n1", "n2"]


@pytest.mark.parametrize("form", ["names", "nodes"])
def test_a_filter_result_has_the_form_of_the_request(form):
    args = parse_filter_args(golden_bytes(f"filter_args_{form}"))
    result = FilterResult(
        ["n1"],
        failed={"n0": "its GPUs are reserved for team-b"},
        unresolvable={"n2": "no GPU of this kind"},
    )

    assert filter_result(result, args) == golden(f"filter_result_{form}")


def test_a_failed_filter_has_an_error():
    args = parse_filter_args(golden_bytes("filter_args_names"))
    result = FilterResult([], error="the plan of team-a/resnet cannot be read")

    assert filter_result(result, args) == golden("filter_result_error")


def test_scores_are_integers_from_0_to_10():
    scores = [HostPriority("n0", 0), HostPriority("n1", 10), HostPriority("n2", 3)]

    assert host_priorities(scores) == golden("host_priority_list")
    for wrong in (-1, 11, 2.0, True):
        with pytest.raises(ValueError, match=f"node 'n0': score={wrong}, must be an int from 0"):
            HostPriority("n0", wrong)  # type: ignore[arg-type]


def test_a_binding_request_has_name_and_uid_and_its_result_an_error():
    args = parse_bind_args(golden_bytes("binding_args"))

    assert args == BindArgs("resnet-0", "team-a", "5f2c", "n1")
    assert binding_result("") == golden("binding_result")
    assert binding_result("pod team-a/resnet-0 is already on n2") == golden("binding_result_error")


def test_victims_are_uids_or_complete_pods_and_results_are_uids():
    complete = parse_preempt_args(golden_bytes("preemption_args_victims"))
    meta = parse_preempt_args(golden_bytes("preemption_args_meta_victims"))
    first, second = golden("preemption_args_victims")["NodeNameToVictims"]["n0"]["Pods"]

    assert meta == PreemptArgs(
        complete.pod, {"n0": Victims({"a1": None, "a2": None}, 1), "n1": Victims({})}
    )
    assert complete.victims == {"n0": Victims({"a1": first, "a2": second}, 1), "n1": Victims({})}
    for args in (complete, meta):
        result = {"n0": Victims({"a1": args.victims["n0"].pods["a1"]}, 1)}
        assert preemption_result(result) == golden("preemption_result")


def change_case(value: Any, random: Random) -> Any:
    """Change the case of keys, except inside pods and nodes."""
    if isinstance(value, list):
        return [change_case(one, random) for one in value]
    if not isinstance(value, dict) or "spec" in value:
        return value
    return {
        "".join(random.choice([c.lower(), c.upper()]) for c in key)
        if key in KEYS
        else key: change_case(one, random)
        for key, one in value.items()
    }


@pytest.mark.parametrize("name", PARSERS)
@given(seed=st.integers(0, 2**32))
def test_keys_are_case_insensitive(name, seed):
    other = json.dumps(change_case(golden(name), Random(seed))).encode()

    assert PARSERS[name](other) == PARSERS[name](golden_bytes(name))


@pytest.mark.parametrize("name", PARSERS)
def test_unknown_keys_are_ignored_and_the_last_equal_key_counts(name):
    body = golden(name)
    first = next(iter(body))
    changed = {first.upper(): None, "Later": {"Pod": 1}, **body}

    assert PARSERS[name](json.dumps(changed).encode()) == PARSERS[name](golden_bytes(name))


POD = '{"metadata": {"name": "p"}}'


@pytest.mark.parametrize(
    ("parse", "body", "message"),
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
def test_an_invalid_request_is_rejected_with_the_invalid_key(parse, body, message):
    with pytest.raises(InvalidRequestError, match=message):
        parse(body.encode())


def test_nil_lists_of_go_are_empty():
    pods = f'{{"Pod": {POD}, "NodeNameToVictims": {{"n0": {{"Pods": null}}}}}}'

    assert parse_filter_args(f'{{"Pod": {POD}, "Nodes": {{"items": null}}}}'.encode()).nodes == {}
    assert parse_preempt_args(pods.encode()).victims == {"n0": Victims({})}
