"""One caller: times of calls, one after another. Asked and answered in lines of JSON.

It knows bytes only, and Triton's own client; it needs no package of ours.
"""

from __future__ import annotations

import gc
import http.client
import itertools
import json
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton

MOST_BYTES = 16 * 1024 * 1024
LENGTHS = [(f"grpc.max_{way}_message_length", MOST_BYTES) for way in ("receive", "send")]
WARM_UP_CALLS = 50
COUNTER_DIGITS = 8
counter = itertools.count()


@cache
def channel(target: str) -> grpc.Channel:
    return grpc.insecure_channel(target, LENGTHS)


@cache
def triton_client(target: str) -> Any:
    return triton.InferenceServerClient(target)


def raw_call(spec: dict[str, Any]) -> Callable[[], int]:
    """Return a call of bytes to bytes by a stub without messages; varied by ``counter_at``."""
    body = Path(spec["body"]).read_bytes()
    call: Any = channel(spec["target"]).unary_unary(spec["method"])
    at = spec.get("counter_at")
    if at is None:
        return lambda: len(call(body, timeout=60))
    before, after = body[:at], body[at + COUNTER_DIGITS :]

    def call_with_new_name() -> int:
        number = b"%0*d" % (COUNTER_DIGITS, next(counter))
        return len(call(before + number + after, timeout=60))

    return call_with_new_name


def triton_call(spec: dict[str, Any]) -> Callable[[], int]:
    """Return a call of a matrix to a matrix by Triton's client."""
    rows = np.load(spec["rows"])
    client = triton_client(spec["target"])

    def call() -> int:
        features = triton.InferInput("features", list(rows.shape), "FP32")
        features.set_data_from_numpy(rows)
        answer = client.infer(spec["model"], [features], client_timeout=60)
        # None of an echo, which has no outputs.
        quantiles = answer.as_numpy("quantiles")
        return 0 if quantiles is None else quantiles.nbytes

    return call


def http_call(spec: dict[str, Any]) -> Callable[[], int]:
    """Return a call of JSON to JSON on a new connection, as servers close idle ones."""
    body = Path(spec["body"]).read_bytes()
    connection = http.client.HTTPConnection(spec["target"], timeout=60)

    def call() -> int:
        connection.request("POST", spec["method"], body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{spec['target']}: {answer.status} {content[:500]!r}")
        return len(content)

    return call


CALLS = {"raw": raw_call, "triton": triton_call, "http": http_call}


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the times of at most ``calls`` calls in at most ``seconds``."""
    call = CALLS[spec["kind"]](spec)
    for _ in range(min(WARM_UP_CALLS, max(1, spec["calls"] // 20))):
        answer_bytes = call()
    times_s: list[float] = []
    gc.disable()
    end_s = time.perf_counter() + spec["seconds"]
    while len(times_s) < spec["calls"]:
        begin_s = time.perf_counter()
        call()
        now_s = time.perf_counter()
        times_s.append(now_s - begin_s)
        if now_s > end_s:
            break
    gc.enable()
    p50, p99 = np.quantile(times_s, (0.5, 0.99)) * 1e6
    return {"calls": len(times_s), "p50_us": p50, "p99_us": p99, "answer_bytes": answer_bytes}


for line in sys.stdin:
    print(json.dumps(measure(json.loads(line))), flush=True)
