"""Words of an earlier private dialect of this project, with the words to write instead.

The glossary of the project has the field's terms. A word is looked for as a whole word of a text
and as a component of an identifier: ``foretold`` is found in ``is_foretold`` and in ``Foretold``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

WORDS = {  # of texts and of identifiers
    "foretell": "predict", "foretells": "predicts", "foretelling": "predicting",
    "foretold": "predicted", "who": "the component's name", "whom": "the component's name",
    "whoever": "the component's name", "whomever": "the component's name",
    "whose turn": "queue order", "nobody": "none", "somebody": "the component's name",
    "anybody": "any", "lookout": "poller", "lately": "recent", "of late": "recent",
    "beside": "co-located", "alone": "solo or exclusive", "a look": "check, pass or poll",
    "told": "reported or requested", "untold": "missing", "strange": "out-of-domain",
    "stranger": "out-of-domain job", "strangers": "out-of-domain jobs", "anew": "again",
    "mend": "fix or repair", "mends": "fixes or repairs",
    "mended": "fixed or repaired", "vouch": "guarantee", "vouches": "guarantees",
    "obey": "apply", "obeys": "applies", "obeyed": "applied", "companies": "occupancies",
    "runs dry": "drains", "run dry": "drain", "sent away": "evicted or preempted",
    "make room": "evict or preempt", "one's own": "own", "as it likes": "freely",
}  # fmt: skip
TEXT_WORDS = WORDS | {"learnt": "learned"}
IDENTIFIER_WORDS = WORDS | {
    "asked": "requested", "said": "message or reported", "says": "reports",
    "wanted": "desired or required", "heard": "received", "whose": "owner",
}  # fmt: skip
_TEXT_PATTERN = re.compile(rf"\b(?:{'|'.join(TEXT_WORDS)})\b", re.IGNORECASE)


def private_words(text: str) -> list[str]:
    """Return the words of a text that belong to the private dialect."""
    return _TEXT_PATTERN.findall(text)


def private_words_of_identifier(name: str) -> list[str]:
    """Return the components of an identifier, in snake or camel case, that belong to it."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    components = f" {' '.join(parts).lower()} "
    return [word for word in IDENTIFIER_WORDS if f" {word} " in components]


def defined_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of each module, class, function, parameter and variable of a file."""
    yield 1, path.parent.name if path.stem == "__init__" else path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
