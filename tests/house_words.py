"""Words that this repository does not use.

Owns the list of words (`banned_words.txt`) and how they are looked for. `tests/test_house.py` checks that no file has one.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# May only grow. Processes, pods, trees, callers and operators act here, not persons, and they do so in plain verbs.
BANNED = frozenset((ROOT / "tests/banned_words.txt").read_text().split())
BANNED_PHRASES = ("goes for", "on their way out", "on its way out")  # may only grow

# Files that are not counted, for good. A folder ends in "/".
EXEMPT = {
    "tests/house_words.py": "quotes some of them",
    "tests/golden/": "recorded from the product, and texts of other repositories",
}
SUFFIXES = (".py", ".md", ".sql", ".yaml", ".toml")
OTHER_FILES = ("Makefile", ".ci/run")

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # the parts of snake_case and CamelCase too
_COMMAND = re.compile(r"make.room", re.IGNORECASE)  # the name of a command, as users know it
_PHRASE = re.compile("|".join(r"\s+".join(phrase.split()) for phrase in BANNED_PHRASES))


def files() -> list[str]:
    """Return the tracked files whose words are counted, by their path below the repository."""
    listed = subprocess.run(
        # the checkout of a CI machine may belong to another user
        ["git", "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return [
        name
        for name in listed.split("\0")
        if (name.endswith(SUFFIXES) or name in OTHER_FILES)
        and not name.startswith(tuple(EXEMPT))
        and (ROOT / name).is_file()
    ]


def banned_words(text: str) -> Iterator[tuple[str, int]]:
    """Yield each banned word or phrase, in lower case, and where it begins; parts of identifiers are words.

    >>> list(banned_words("SaidSo was_hearing _said HEARS_MAX, not essay, the This; it goes for"))
    [('said', 0), ('said', 20), ('hears', 25), ('goes for', 60)]
    """
    for match in _WORD.finditer(_COMMAND.sub(lambda name: "_" * len(name[0]), text)):
        if match[0].lower() in BANNED:
            yield match[0].lower(), match.start()
    for match in _PHRASE.finditer(text.lower()):
        yield match[0], match.start()


def occurrences() -> Iterator[tuple[str, str]]:
    """Yield the place (file and line) of each banned word, and the word."""
    for name in files():
        text = (ROOT / name).read_text()
        for word, at in banned_words(text):
            yield f"{name}:{text.count(chr(10), 0, at) + 1}", word
