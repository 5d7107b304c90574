"""Words that this repository does not use, and the files that still have some of them.

Owns the list of words (`banned_words.txt`), the count of their occurrences in a file, and the number that each file is allowed today.
`tests/test_house.py` compares. After words are removed from a file, `python -m tests.house_words` lowers its number.
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


def banned_words(text: str) -> Iterator[str]:
    """Yield each occurrence of a banned word or phrase, in lower case; parts of identifiers are words.

    >>> list(banned_words("SaidSo was_hearing _said HEARS_MAX, not essay, the This; it goes for"))
    ['said', 'said', 'hears', 'goes for']
    """
    for word in _WORD.findall(text):
        if word.lower() in BANNED:
            yield word.lower()
    yield from _PHRASE.findall(text.lower())


def occurrences() -> dict[str, list[str]]:
    """Return the banned words of each file that has some."""
    found = {name: list(banned_words((ROOT / name).read_text())) for name in files()}
    return {name: words for name, words in found.items() if words}


def main() -> None:
    """Lower the numbers of `ALLOWED` to what the files have now; a number is never raised, a file never added."""
    counted = {name: len(words) for name, words in occurrences().items()}
    lines = [
        f'    "{name}": {min(number, counted[name])},'
        for name, number in sorted(ALLOWED.items())
        if name in counted
    ]
    path = Path(__file__)
    before, marker, rest = path.read_text().partition("\nALLOWED: dict[str, int] = {\n")
    after = rest.partition("}\n")[2]
    path.write_text(before + marker + "".join(f"{line}\n" for line in lines) + "}\n" + after)
    print(f"{sum(map(len, occurrences().values()))} occurrences left in {len(lines)} files")


# How many occurrences a file may have today. May only shrink: the number of a file is exact, and no file is added.
ALLOWED: dict[str, int] = {
    "docs/preemption.md": 3,
    "extender/cluster/manifests/journal.py": 2,
    "extender/cluster/read/object_store.py": 2,
    "extender/cluster/read/pod_conversion.py": 1,
    "extender/control/actuators/evictor.py": 2,
    "extender/control/loop/preemption_policy.py": 1,
    "extender/core/decisions/preempt/disruption_units.py": 1,
    "extender/core/decisions/preempt/preemption_lifecycle.py": 1,
    "extender/core/decisions/preempt/preemption_takeover.py": 2,
    "extender/core/decisions/reconcile/cluster_reconciliation.py": 2,
    "extender/core/log/events.py": 2,
    "extender/core/log/reservation_state.py": 1,
    "extender/core/model/pods.py": 1,
    "extender/core/planner/codec/victim_codec.py": 4,
    "extender/core/planner/preemption_types.py": 2,
    "tests/acceptance/test_preemption_kills.py": 1,
    "tests/integration/cluster/test_kubernetes_writes.py": 1,
    "tests/support/logs/random_logs.py": 2,
    "tests/support/planning/preemption_checker.py": 1,
    "tests/support/planning/random_trees.py": 3,
    "tests/support/service/fakes.py": 3,
    "tests/support/service/job_arrivals.py": 1,
    "tests/unit/control/actuators/test_evictor.py": 2,
    "tests/unit/control/loop/test_preemption_takeover.py": 4,
    "tests/unit/control/loop/test_preemption_thrash.py": 1,
    "tests/unit/core/decisions/capacity/test_replacement_holds.py": 1,
    "tests/unit/core/decisions/preempt/test_preemption_takeover.py": 2,
    "tests/unit/core/decisions/reconcile/test_cluster_reconciliation.py": 5,
}

if __name__ == "__main__":
    main()
