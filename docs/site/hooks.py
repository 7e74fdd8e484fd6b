"""Hooks of the documentation site, named in ``mkdocs.yml``.

They add reference pages that are generated from the code, and a page for each source file that a
page links to, because the site has to work without the repository.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))
import reference_pages

ROOT = Path(__file__).parents[2]
DOCS = PurePosixPath("docs")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
LANGUAGES = {
    ".md": "markdown",
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".proto": "proto",
    ".json": "json",
}


def on_files(files: Any, config: Any) -> Any:
    """Add generated pages to the files of the site."""
    for name, text in reference_pages.pages().items():
        files.append(File.generated(config, name, content=text))
    linked = {
        target
        for file in files.documentation_pages()
        for _, target in outside_links(PurePosixPath(file.src_uri), file.content_string)
    }
    for target in sorted(linked):
        if (ROOT / target).is_file():
            page = File.generated(config, source_page(target), content=source_text(target))
            files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replace links that leave the documentation by links to pages of the site."""
    place = PurePosixPath(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        target = resolve(place, match[1])
        if target is None:
            return match[0]
        if not (ROOT / target).is_file():  # a folder
            return f"](# '{target}')"
        if target == "README.md":
            target, page_name = "", "index.md"
        else:
            page_name = source_page(target)
        return f"]({os.path.relpath(page_name, place.parent)})"

    return LINK.sub(replaced, markdown)


def outside_links(place: PurePosixPath, markdown: str) -> Iterator[tuple[str, str]]:
    """Yield the links of a page that leave the documentation, with paths from the root."""
    for match in LINK.finditer(markdown):
        target = resolve(place, match[1])
        if target is not None and target != "README.md":
            yield match[0], target


def resolve(place: PurePosixPath, link: str) -> str | None:
    """Return the path from the root of a link that leaves the documentation, else None."""
    path = os.path.normpath(DOCS / place.parent / link)
    return None if path.startswith("docs/") or path == "docs" else path


def source_page(target: str) -> str:
    """Return the name of the page of a source file."""
    return f"source/{target}.md"


def source_text(target: str) -> str:
    """Return the page of a source file."""
    text = (ROOT / target).read_text()
    language = LANGUAGES.get(PurePosixPath(target).suffix, "text")
    return f"# {target}\n\n``````{language}\n{text}\n``````\n"
