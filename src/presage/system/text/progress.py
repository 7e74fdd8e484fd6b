"""Progress bars for long commands; nothing is written if stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from presage.system.text.printable import printable

Progress = Callable[[int, int], None]  # parts of the work that are done, and all


@contextmanager
def training_progress(label: str) -> Iterator[Progress]:
    """Show a bar with the remaining time; yield its callback ``(done, total)``."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from presage.system.text.terminal import Console

    console = Console(stderr=True)
    # Not as markup: the label may be a policy's or a file's name.
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(printable(label), total=None)

        def move(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield move


@contextmanager
def counted_progress(label: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar; yield a callback for each of ``total`` parts of the work that is done."""
    done = 0
    with training_progress(label) as move:

        def step() -> None:
            nonlocal done
            done += 1
            move(done, total)

        yield step
