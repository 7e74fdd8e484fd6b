"""Help of typer commands as the plain page of :mod:`presage.system.text.help_page`.

It reads public attributes of commands and parameters only, which every supported version of typer
has: the text does not depend on the version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer import Typer
from typer.main import get_command

from presage.cli.lazy_group import LazyCommands
from presage.system.text.help_page import Section, help_page, with_notes

# By a part of the Python type's name, which may be a list's.
_VALUE_NAMES = {"int": "INTEGER", "float": "NUMBER", "Path": "PATH", "path": "PATH"}
_DEFAULT_TITLES = {"argument": "Arguments", "option": "Options"}


def command_of(app: Typer) -> Any:
    """Return the command line of an app; it and all of its commands have the plain help page."""
    command = get_command(app)
    _set_help(command)
    return command


def _set_help(command: Any) -> None:
    def format_help(ctx: Any, formatter: Any) -> None:
        formatter.write(page_of(command, ctx))

    command.format_help = format_help
    commands = getattr(command, "commands", {})
    if isinstance(commands, LazyCommands):
        commands.on_load = _set_help
    else:
        for child in commands.values():
            _set_help(child)


def page_of(command: Any, ctx: Any) -> str:
    """Return the help page of a command."""
    sections = [*_parameter_sections(command, ctx), *_command_sections(command)]
    usage = f"{ctx.command_path} {_usage(command)}"
    return help_page(usage, command.help or "", sections, command.epilog or "")


def _usage(command: Any) -> str:
    arguments = [_argument_name(one) for one in command.params if one.param_type_name == "argument"]
    if hasattr(command, "commands"):
        arguments.append("COMMAND ..." if not command.invoke_without_command else "[COMMAND ...]")
    return " ".join([command.options_metavar or "[OPTIONS]", *arguments])


def _parameter_sections(command: Any, ctx: Any) -> Iterator[Section]:
    by_title: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):  # with --help
        if getattr(parameter, "hidden", False):
            continue
        title = getattr(parameter, "rich_help_panel", None)
        rows = by_title.setdefault(title or _DEFAULT_TITLES[parameter.param_type_name], [])
        rows.append((_name(parameter), _text(parameter)))
    first = ("Arguments", "Options")
    for title, rows in sorted(by_title.items(), key=lambda item: item[0] not in first):
        yield Section(title, rows)


def _command_sections(command: Any) -> Iterator[Section]:
    by_title: dict[str, list[tuple[str, str]]] = {}
    for name, child in getattr(command, "commands", {}).items():
        title = getattr(child, "rich_help_panel", None)
        first_sentence = (child.help or "").split("\n\n")[0].replace("\n", " ").split(". ")[0]
        rows = by_title.setdefault(title or "Commands", [])
        rows.append((name, f"{first_sentence.removesuffix('.')}."))
    return (Section(title, rows) for title, rows in by_title.items())


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _argument_name(parameter)
    flags = ", ".join(sorted(parameter.opts, key=len))  # -h, --help
    if parameter.secondary_opts:
        return f"{flags} / {', '.join(parameter.secondary_opts)}"
    return flags if parameter.is_flag else f"{flags} {_value_name(parameter)}"


def _argument_name(argument: Any) -> str:
    """Return an argument as ``JOB...`` or ``[JOB]...``."""
    name = str(argument.metavar or argument.name).strip("[].").upper()
    more = "..." if argument.nargs != 1 else ""
    return f"{name}{more}" if argument.required else f"[{name}]{more}"


def _value_name(option: Any) -> str:
    if option.metavar is not None:
        return str(option.metavar)
    described = getattr(option, "type_descriptor", None) or getattr(option, "type", None)
    kind = str(getattr(described, "annotation", described))
    return next((name for part, name in _VALUE_NAMES.items() if part in kind), "TEXT")


def _text(parameter: Any) -> str:
    notes = []
    if default := _default(parameter):
        notes.append(f"default: {default}")
    if parameter.required and parameter.param_type_name == "option":
        notes.append("required")
    if limits := _limits(parameter):
        notes.append(limits)
    if parameter.envvar:
        notes.append(f"environment: {parameter.envvar}")
    return with_notes(parameter.help or "", notes)


def _default(parameter: Any) -> str:
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return shown
    default = parameter.default
    if shown is False or default is None or callable(default):
        return ""
    if isinstance(default, bool):
        return parameter.opts[0].lstrip("-") if default and parameter.secondary_opts else ""
    return _number(default)


def _limits(parameter: Any) -> str:
    least, most = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if least is not None and most is not None:
        return f"from {_number(least)} to {_number(most)}"
    if least:
        return f"at least {_number(least)}"
    return "" if most is None else f"at most {_number(most)}"


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
