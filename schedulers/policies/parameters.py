"""Parameters of policies as text: read by the annotations of the constructor."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from presage.errors import ConfigError
from presage.system.text.known_names import check_known

_BOOLEANS = {"true": True, "false": False}
_VALUE_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def read_parameters(
    name: str, factory: Callable[..., object], settings: Sequence[str]
) -> dict[str, object]:
    """Return the values of ``PARAMETER=VALUE`` texts, as the constructor annotates them.

    Parameters
    ----------
    name : str
        Name of the policy, for error messages.
    factory : callable
        Class or function that creates the policy.

    Raises
    ------
    ConfigError
        If a parameter is unknown, missing or given twice, or its value is not of its type.
    """
    known = _parameters(factory)
    values: dict[str, object] = {}
    for setting in settings:
        parameter, equals, text = setting.partition("=")
        if not known:
            raise ConfigError(f"policy {name!r} has no parameters, not {setting!r}")
        if not equals:
            raise ConfigError(f"policy {name!r}: {setting!r} is not PARAMETER=VALUE")
        check_known([parameter], known, f"policy {name!r}: ")
        if parameter in values:
            raise ConfigError(f"policy {name!r}: {parameter} is given twice")
        try:
            values[parameter] = read_value(text, known[parameter][0])
        except ValueError as error:
            shown = text if text.isprintable() and " " not in text else repr(text)
            raise ConfigError(f"policy {name!r}: {parameter}={shown}, {error}") from None
    for parameter, (_, is_required) in known.items():
        if is_required and parameter not in values:
            raise ConfigError(f"policy {name!r}: {parameter} is missing; give {parameter}=VALUE")
    return values


def _parameters(factory: Callable[..., object]) -> Mapping[str, tuple[Any, bool]]:
    """Return the type of each parameter, and whether it is required."""
    try:
        found = inspect.signature(factory).parameters.values()
    except ValueError:  # some builtins have none
        return {}
    try:
        hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    except (NameError, TypeError):  # an annotation that only a type checker can resolve
        hints = {}
    return {
        parameter.name: (
            hints.get(parameter.name, _type_of(parameter.default)),
            parameter.default is parameter.empty,
        )
        for parameter in found
        if parameter.kind in _VALUE_KINDS
    }


def _type_of(default: object) -> Any:
    """Return the type of a parameter without an annotation, by its default."""
    return type(default) if isinstance(default, bool | int | float | str) else Any


def read_value(text: str, kind: Any) -> object:
    """Return the value of a text as a type: int, float, bool, str, Literal, or a union of these.

    Raises
    ------
    ValueError
        If the text is not a value of that type; the message says what it must be.
    """
    if kind in _READERS:
        return _READERS[kind](text)
    if get_origin(kind) is Literal:
        return _choice(text, get_args(kind))
    if kind is Any:
        return _first_of(text, (int, float, str))
    if get_origin(kind) in (Union, UnionType):
        return _first_of(text, get_args(kind))
    if kind is NoneType and text == "none":
        return None
    raise ValueError(f"must be of type {_name(kind)}, which cannot be given as text")


def _choice(text: str, choices: Sequence[object]) -> object:
    for choice in choices:
        if str(choice) == text:
            return choice
    raise ValueError(f"must be one of {', '.join(map(str, choices))}")


def _boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise ValueError("must be a bool: true or false")
    return _BOOLEANS[text]


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text) or len(text) > 18:
        raise ValueError("must be an int: a whole number of at most 18 digits")
    return int(text)


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError("must be a float: a finite number") from None
    if not math.isfinite(number):  # also for a number that does not fit into a float
        raise ValueError("must be a finite number (float)")
    return number


def _first_of(text: str, kinds: Sequence[Any]) -> object:
    errors = []
    for kind in sorted(kinds, key=lambda kind: kind is str):
        try:
            return read_value(text, kind)
        except ValueError as error:
            errors.append(str(error))
    raise ValueError("; or ".join(errors))


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


_READERS: Mapping[Any, Callable[[str], object]] = {
    str: str,
    bool: _boolean,
    int: _integer,
    float: _finite,
}
