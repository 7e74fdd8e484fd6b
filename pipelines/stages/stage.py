"""What every stage shares at its edge: parameters, tables, whole files, exit codes.

A stage that is interrupted while its imports still run dies of the signal, as any Python program
does, which a shell shows as 130 too: a handler set on import would be every library user's as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from presage.errors import ConfigError, PresageError, TableError
from presage.system.files.atomic_file import write_atomically
from presage.system.files.atomic_folder import replaced_folder
from presage.system.text.known_names import did_you_mean
from presage.system.text.printable import error_line

if TYPE_CHECKING:
    import pandas as pd

INTERRUPTED = 130
PARAMS = Path("params.yaml")

Config = TypeVar("Config")


def run_stage(main: Callable[[], None]) -> None:
    """Run a stage's ``main``: one line for an error a person can mend, 130 for Ctrl-C."""
    try:
        main()
    except (PresageError, OSError) as error:  # such as a file that is gone, or a full disk
        sys.stderr.write(f"error: {error_line(error)}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; files are whole, run it again to go on\n")
        exit_interrupted()


def exit_interrupted() -> NoReturn:
    """End the process with status 130, at once.

    Not by sys.exit: when the interrupt passed through an ``exec`` of a string (dataclasses, torch),
    CPython 3.11 ends by SIGINT itself, whatever status was asked for.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def check_report_path(path: Path) -> None:
    """Refuse a place where no page can be put, before any work is done.

    Raises
    ------
    ConfigError
        The path is a folder, or its own folder does not exist.
    """
    if path.is_dir():
        raise ConfigError(f"--report {path}: that is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"--report {path}: there is no folder {path.parent}; make it first")


def write_page(content: str, path: Path) -> None:
    """A page as a file, whole or not at all.

    Raises
    ------
    ConfigError
        The file cannot be written there.
    """
    check_report_path(path)
    try:
        write_atomically(path, lambda partial: partial.write_text(content, encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"--report {path}: cannot be written ({error.strerror}); name another place"
        ) from error


def replace_folder(folder: Path, names: Iterable[str], write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a new folder with ``names``, then put it in place of the old one.

    A reader sees the whole old folder or the whole new one, also after a kill. A partial folder
    that a kill leaves is hidden, and no stage depends on it.

    Raises
    ------
    TableError
        ``folder`` holds something else, which would be lost.
    """
    found = {path.name for path in folder.glob("[!.]*")} if folder.is_dir() else set()
    if folder.exists() and (not folder.is_dir() or not found <= set(names)):
        odd = min(found - set(names), default=folder.name)
        raise TableError(
            f"{folder} holds {odd!r}, which is none of ours, and is replaced as a whole; name a "
            "folder of its own"
        )
    with replaced_folder(folder) as partial:
        write(partial)


def read_table(path: Path) -> pd.DataFrame:
    """Table that an earlier stage wrote.

    Raises
    ------
    TableError
        The file is missing, or is not parquet.
    """
    import pandas as pd
    import pyarrow as pa

    try:
        with path.open("rb") as file:  # once: see features.checked_table.read
            return pd.read_parquet(file)
    except FileNotFoundError as error:
        raise TableError(f"{path}: no such table; `dvc repro` runs the stage before") from error
    except (pa.ArrowException, OSError) as error:
        raise TableError(
            f"{path}: not a readable parquet file ({_one_line(error)}); delete it and `dvc repro`"
        ) from error


def read_params(
    section: str, into: type[Config], *, besides: Iterable[str] = (), path: Path = PARAMS
) -> Config:
    """A section of params.yaml, such as ``train.memory``, as the dataclass that declares its keys.

    ``besides`` are keys of the section that others read.

    Raises
    ------
    ConfigError
        The file or the section is missing; a key is unknown, missing, or of no use.
    """
    given = {key: value for key, value in read_section(section, path).items() if key not in besides}
    where = f"{path}: {section}"
    check_settings(given, into, where=where)
    missing = [
        field.name
        for field in fields(into)  # type: ignore[arg-type]
        if field.name not in given and field.default is field.default_factory is MISSING
    ]
    if missing:
        raise ConfigError(f"{where}.{missing[0]} is missing; `git diff {path}` shows what it was")
    try:
        return into(**given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {_one_line(error)}") from error


def read_section(section: str, path: Path = PARAMS) -> Mapping[str, Any]:
    """Keys and values of a section of a YAML file; dots lead into sections of sections.

    Raises
    ------
    ConfigError
        The file is missing or no YAML; or the section is missing or empty.
    """
    import yaml

    try:
        found = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; run it from the repository's root") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {_one_line(error)}") from error
    for name in section.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        raise ConfigError(f"{path}: no section {section!r}; `git diff {path}` shows what it was")
    return found


def check_settings(given: Mapping[str, Any], into: type, *, where: str) -> None:
    """Reject a key that the dataclass ``into`` does not declare, and a value of another type.

    Raises
    ------
    ConfigError
        Names the key and a similar known one.
    """
    kinds = get_type_hints(into)
    for key, value in given.items():
        if key not in kinds:
            raise ConfigError(f"{where}.{key} is not a setting; {did_you_mean(str(key), kinds)}")
        _check_value(value, kinds[key], where=f"{where}.{key}")


def _check_value(value: object, kind: Any, *, where: str) -> None:
    """A network of "64" neurons would fail far from the file that says so."""
    parts = get_args(kind)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where}={value!r} is not a list; write [{value}]")
        for part in value:
            _check_value(part, parts[0], where=where)
    elif get_origin(kind) is Mapping:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}={value!r} is no mapping; write {{name: value}}")
        for key, part in value.items():
            _check_value(key, parts[0], where=where)
            _check_value(part, parts[1], where=f"{where}.{key}")
    else:
        _check_scalar(value, {kind, *parts}, where=where)


def _check_scalar(value: object, kinds: set[Any], *, where: str) -> None:
    if isinstance(value, date) and kinds & {date, datetime}:
        return
    if float in kinds or int in kinds:
        wanted = (int, float) if float in kinds else int
        if isinstance(value, bool) or not isinstance(value, wanted):
            what = "a number (to YAML, 1e-2 is text)" if float in kinds else "a whole number"
            raise ConfigError(f"{where}={value!r} is not {what}")
    elif str in kinds and not isinstance(value, str):
        raise ConfigError(f"{where}={value!r} is not text; put it in quotes")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
