"""Words of an earlier private dialect of this project, with the words to write instead.

The glossary of the project has the field's terms. Words are patterns, and are looked for as whole
words of a text and as components of an identifier, in snake or camel case.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

WORDS = {  # of texts and of identifiers
    "fore-?t(?:ell(?:s|ing)?|old)": "predict",  "who(?:m|m?ever)?": "the component's name",
    "whose turn": "queue order", "(?:some|no|any)body": "none, any or the component's name",
    "look-?out": "poller", "lately|of late": "recent", "beside": "co-located",
    "alone": "solo or exclusive", "a look": "check, pass or poll", "told": "reported or requested",
    "untold": "missing", "strange": "out-of-domain", "strangers?": "out-of-domain job",
    "anew": "again", "mend(?:s|ed)?": "fix or repair", "vouch(?:es)?": "guarantee",
    "obey(?:s|ed)?": "apply", "companies": "occupancies", "runs? dry": "drain",
    "sent away": "evicted or preempted", "make room": "evict or preempt", "one's own": "own",
    "as it likes": "freely",
}  # fmt: skip
TEXT_WORDS = WORDS | {"learnt": "learned"}
IDENTIFIER_WORDS = WORDS | {
    "asked": "requested", "said": "message or reported", "says": "reports",
    "wanted": "desired or required", "heard": "received", "whose": "owner",
}  # fmt: skip


def private_words(text: str) -> dict[str, str]:
    """Return the words of a text that belong to the private dialect, with those to write."""
    return _found(text, TEXT_WORDS)


def private_words_of_identifier(name: str) -> dict[str, str]:
    """Return the components of an identifier that belong to it, with those to write."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return _found(" ".join(parts).lower(), IDENTIFIER_WORDS)


def _found(text: str, words: Mapping[str, str]) -> dict[str, str]:
    return {
        match[0]: better
        for pattern, better in words.items()
        for match in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE)
    }


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
