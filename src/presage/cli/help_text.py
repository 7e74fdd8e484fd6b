"""What ``--help`` shows of options and arguments: a word for the value, nothing for a flag.

typer shows Python's types, such as ``<bool>`` beside a flag and ``<list[str]>`` beside an option
that may be repeated, and puts brackets around metavars that have them. Where another version of
typer lacks what is replaced here, its own help is shown.
"""

from __future__ import annotations

from typing import Any

from typer import Typer
from typer.main import get_command

# By a part of the Python type's name, which may be a list's.
_WORDS = {"str": "TEXT", "int": "INTEGER", "float": "NUMBER", "Path": "PATH"}


def command_of(app: Typer) -> Any:
    """Return the command line of an app, whose help says values in words."""
    command = get_command(app)
    _reword(command)
    return command


def _reword(command: Any) -> None:
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            _show(parameter, None)
            _show_usage(parameter)
        else:
            _show(parameter, _value_of(parameter))
            _move_range(parameter)
    help_option = command.get_help_option  # made when it is first asked for

    def plain(ctx: Any) -> Any:
        option = help_option(ctx)
        if option is not None:
            _show(option, None)
        return option

    command.get_help_option = plain
    for child in getattr(command, "commands", {}).values():
        _reword(child)


def _value_of(option: Any) -> str | None:
    """None for a flag, which takes no value."""
    if option.is_flag:
        return None
    if option.metavar is not None:
        return str(option.metavar)
    annotation = str(getattr(getattr(option, "type_descriptor", None), "annotation", ""))
    return next((word for part, word in _WORDS.items() if part in annotation), "TEXT")


def _move_range(option: Any) -> None:
    """Say the range of a number in the help's text: beside the value it takes the text's room."""
    least, most = getattr(option, "min", None), getattr(option, "max", None)
    if least is None and most is None:
        return
    if most is None:
        said = f"At least {least:g}."
    elif least is None:
        said = f"At most {most:g}."
    else:
        said = f"From {least:g} to {most:g}."
    option.help = f"{option.help} {said}"
    option._get_number_range_help_str = _nothing


def _nothing() -> None:
    return None


def _show(parameter: Any, value: str | None) -> None:
    def shown(ctx: Any) -> str | None:
        del ctx
        return value

    parameter.display_type_rich = shown


def _show_usage(argument: Any) -> None:
    """As ``JOB...`` or ``[JOB]...``, whatever of it is in the metavar."""
    name = str(argument.metavar or argument.name).strip("[].").upper()
    more = "..." if argument.nargs != 1 else ""
    usage = f"{name}{more}" if argument.required else f"[{name}]{more}"

    def pieces(ctx: Any) -> list[str]:
        del ctx
        return [usage]

    argument.get_usage_pieces = pieces
