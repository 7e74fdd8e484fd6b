"""Templates of the HTML pages: reports, simulations and the live page read them alike."""

from __future__ import annotations

from pathlib import Path

import jinja2

from presage.system.text.printable import on_page


def page_environment(folder: Path) -> jinja2.Environment:
    """Return an environment for the templates of a folder; it escapes all values.

    A template that names an undefined value raises an error. The caller adds filters.
    """
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        finalize=on_page,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
