"""Commands as documents show them: in blocks of a console, and in the middle of a sentence."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FENCE: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_INLINE: Final = re.compile(r"`(sexton [^`]+)`")
_PROMPT: Final = re.compile(r"^\s*\$ (.*)$")
_ENDS: Final = set("|;&<>()")
_FILLED: Final = {  # what stands for a reader's own value: something of the same form
    r"DATABASE_URL": "sqlite:///catalog.db",
    r"TC:SEQ|T": "3:17",
    r"NAME|IDS?|RUN_ID|WORKFLOW_ID|FILE|HOME|PERCENT|MANIFEST|URL|POS|POSITION|SUB|P|F|N|BUNDLE": "1",
}
_SHELLS: Final = {"console", "bash", "sh"}


@dataclass(frozen=True, slots=True)
class Shown:
    """One command line of a document."""

    document: str
    line: str
    words: tuple[str, ...]  # after `sexton`
    whole: bool  # shown to be typed as it stands; else it may lack what a reader adds


def commands_of(document: Path, root: Path) -> Iterator[Shown]:
    """Every `sexton …` of a document."""
    text, where = document.read_text(encoding="utf-8"), str(document.relative_to(root))
    for language, block in _FENCE.findall(text):
        for line in _typed(block) if language in _SHELLS else ():
            yield from (Shown(where, line, words, whole=True) for words in _split(line))
    for found in _INLINE.findall(_FENCE.sub("", text)):
        line = " ".join(found.split())
        yield from (Shown(where, line, words, whole=False) for words in _split(_filled(line)))


def _typed(block: str) -> Iterator[str]:
    """What stands behind the prompt, joined with the lines that go on with it."""
    lines = iter(block.splitlines())
    for line in lines:
        typed = _PROMPT.match(line)
        if typed:
            whole = typed[1]
            while whole.endswith(("\\", "|")):
                whole = f"{whole.removesuffix(chr(92))} {next(lines).strip()}"
            yield whole


def _filled(line: str) -> str:
    """With something in the place of what a reader fills in, and without what he may leave out."""
    for names, value in _FILLED.items():
        line = re.sub(rf"\b({names})\b", value, line)
    return line.replace("…", "1").replace("[", "").replace("]", "")


def _split(line: str) -> Iterator[tuple[str, ...]]:
    """The words of each `sexton` in a line of a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>()")
    lexer.whitespace_split = True
    words: list[str] | None = None
    first = True  # of a command
    for token in lexer:
        if set(token) <= _ENDS:
            yield from [tuple(words)] if words is not None else []
            words, first = None, True
            continue
        if words is not None:
            words.append(token)
        elif first and token.rpartition("/")[2] == "sexton":
            words = []
        first = False
    if words is not None:
        yield tuple(words)
