"""Commands: options bundled in dataclasses, which typer does not offer by itself, and examples.

.. code-block:: python

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ConnectionOptions:
        controller: Annotated[str, typer.Option(help="Address of the controller.")] = HERE
        token_file: Annotated[Path | None, typer.Option(help="File with a token.")] = None

    @command(examples="presage cluster ps --all")
    def ps(connection: ConnectionOptions, as_json: Json = False) -> None: ...

The command line then has ``--controller`` and ``--token-file``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Any, get_type_hints

import typer
from typer.core import TyperGroup

_EXAMPLES, _SETTINGS = "__examples__", "__settings__"


def command(
    *, examples: str, **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command its examples, and the options of its dataclasses.

    Parameters
    ----------
    examples : str
        Lines to show at the end of the command's help.
    **settings
        More arguments of ``typer.Typer.command``.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        flat = _with_flat_options(function)
        setattr(flat, _EXAMPLES, examples)
        setattr(flat, _SETTINGS, settings)
        return flat

    return decorate


def group(
    help_text: str, *, examples: str, commands: type[TyperGroup] | None = None
) -> typer.Typer:
    """Return a group of commands, which prints its help when it is run without one.

    ``commands`` is the class of a group whose commands are imported one by one
    (:func:`presage.cli.lazy_group.lazy_commands`). Without it, add commands by `add_command`.
    """
    return typer.Typer(
        cls=commands,
        callback=(lambda: None) if commands else None,  # typer needs a command or a callback
        help=help_text,
        epilog=examples,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def add_command(
    app: typer.Typer,
    function: Callable[..., None],
    *,
    name: str | None = None,
    panel: str | None = None,
) -> None:
    """Add a command to an app; the title of its list of commands is ``panel``."""
    examples, settings = getattr(function, _EXAMPLES), getattr(function, _SETTINGS)
    app.command(name, epilog=examples, rich_help_panel=panel, **settings)(function)


def examples_of(function: Callable[..., None]) -> str:
    """Return the examples of a command."""
    return str(getattr(function, _EXAMPLES))


def _with_flat_options(function: Callable[..., None]) -> Callable[..., None]:
    hints = get_type_hints(function, include_extras=True)
    bundles: dict[str, Any] = {}
    parameters: list[Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if is_dataclass(hint):
            bundles[parameter.name] = hint
            parameters += _options_of(hint)
        else:
            kind = Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hint, kind=kind))

    @wraps(function)
    def flat(**values: Any) -> None:
        for name, bundle in bundles.items():
            given = {field.name: values.pop(field.name) for field in fields(bundle)}
            values[name] = bundle(**given)
        function(**values)

    flat.__annotations__ = {one.name: one.annotation for one in parameters}
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat


def _options_of(bundle: Any) -> Iterator[Parameter]:
    hints = get_type_hints(bundle, include_extras=True)
    for field in fields(bundle):
        default = Parameter.empty if field.default is MISSING else field.default
        yield Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
        )
