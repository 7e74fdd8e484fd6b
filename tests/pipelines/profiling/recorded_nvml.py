"""NVML played back from a recording: the responses of pynvml, call by call, by their time.

``benchmarks/profiling/record_nvml.py`` makes recordings on a machine with a GPU. A test without one
builds its own from :func:`responses`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

RECORDINGS = Path(__file__).with_name("nvml")

# Their last argument is a time: they tell of what was sampled since.
SINCE = ("nvmlDeviceGetSamples", "nvmlDeviceGetProcessUtilization")

Call = Mapping[str, Any]


class RecordedNvml:
    """Recorded functions of pynvml, with its constants and errors.

    A call returns the response of that time of the recording, counted from ``nvmlInit``.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = list(calls)
        self._began_s: float | None = None
        self.asked: list[str] = []

    @classmethod
    def read(cls, path: Path) -> RecordedNvml:
        return cls(json.loads(path.read_text())["calls"])

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return getattr(pynvml, name)
        recorded = [call for call in self._calls if call["call"] == name]
        if not recorded:
            raise AttributeError(name)

        def answer(*arguments: Any) -> Any:
            self.asked.append(name)
            return self._answer(name, recorded, arguments)

        return answer

    def replace(self, calls: Sequence[Call]) -> None:
        """Replace the responses of these calls from now on."""
        names = {call["call"] for call in calls}
        self._calls = [call for call in self._calls if call["call"] not in names] + list(calls)

    def nvmlInit(self) -> None:
        self._began_s = self._began_s or time.monotonic()

    def nvmlShutdown(self) -> None:
        pass

    def nvmlGpmMetricsGet(self, asked: Any) -> Any:
        for metric in asked.metrics[: asked.numMetrics]:
            response = self.__getattr__("nvmlGpmMetricsGet")(metric.metricId)
            metric.value, metric.nvmlReturn = response.value, response.nvmlReturn
        return asked

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace() for _ in range(8)])

    def _answer(self, name: str, recorded: Sequence[Call], arguments: Sequence[Any]) -> Any:
        *_, since_us = arguments or (0,)
        plain = [a for a in arguments if isinstance(a, int)][: -1 if name in SINCE else None]
        same = [call for call in recorded if call.get("arguments", plain) == plain]
        if not same:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        assert self._began_s is not None, "nvmlInit comes first"
        now_s = time.monotonic() - self._began_s
        call = ([call for call in same if call["at_s"] <= now_s] or same[:1])[-1]
        if "error" in call:
            raise pynvml.NVMLError(call["error"])
        response = call["answer"]() if callable(call["answer"]) else call["answer"]
        return _since(_to_pynvml(response), since_us) if name in SINCE else _to_pynvml(response)


def responses(at_s: float = 0.0, **answers: Any) -> list[Call]:
    """Return calls of a recording with constant responses; an int is ``NVMLError(code)``.

    A callable is called every time.
    """
    return [
        {"at_s": at_s, "call": f"nvml{name}"}
        | (
            {"error": response.value}
            if isinstance(response, pynvml.NVMLError)
            else {"answer": response}
        )
        for name, response in answers.items()
    ]


def utilization_samples(*samples: tuple[int, int]) -> list[Any]:
    """Return samples in the format of ``nvmlDeviceGetSamples``: microseconds and percent."""
    response = [{"timeStamp": us, "sampleValue": {"uiVal": value}} for us, value in samples]
    return [pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, response]


def _since(response: Any, since_us: int) -> Any:
    """Return the newer samples of a list, or of a list with its type before it."""
    typed = bool(response) and isinstance(response[-1], list)
    newer = [
        sample for sample in (response[1] if typed else response) if sample.timeStamp > since_us
    ]
    if not newer:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return (response[0], newer) if typed else newer


def _to_pynvml(response: Any) -> Any:
    """Return JSON as pynvml's values: an object is a struct."""
    if isinstance(response, dict):
        return SimpleNamespace(**{key: _to_pynvml(value) for key, value in response.items()})
    return [_to_pynvml(item) for item in response] if isinstance(response, list) else response
