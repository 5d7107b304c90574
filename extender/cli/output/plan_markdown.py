"""The answer to a plan query as one page of Markdown, for the summary of a CI job or a comment on a pull request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import UnsetType

from extender.cli.output.plan_text import WHEN_EMPTY, shortened, slice_texts, tree_name
from extender.core.admit.wish_sentences import shown_texts
from extender.core.model.message_formatting import counted
from extender.queries.plan.plan_query import BEST_TO_WORST, GangVerdict, PlanAnswer

ROWS_MAX = 40  # of a table or list
PODS_SHOWN = 8  # of those without a node
ANSWERS = {
    "placed": "fits",
    "waiting": "waits",
    "unknown": "not decided",
    "impossible": "does not fit",
    "invalid": "is not valid",
}
HEADLINES = {
    "placed": "Yes",
    "waiting": "Not yet",
    "unknown": "Not decided",
    "impossible": "No",
    "invalid": "Not valid",
}


def plan_markdown(result: PlanAnswer, warnings: Sequence[str]) -> str:
    """Return a page that ends with a newline; no table or list of it is longer than `ROWS_MAX` entries."""
    return "\n".join(_page(result, warnings)) + "\n"


def _page(result: PlanAnswer, warnings: Sequence[str]) -> Iterator[str]:
    yield f"## Would it fit? {_headline(result)}"
    if not isinstance(result.given, UnsetType):
        yield from ("", f"Planned {escaped('; '.join(result.given))}.")
    if not result.gangs:
        yield from ("", "There is nothing to plan: no group and no pending pod was given.")
    else:
        yield ""
        yield from _overview(result.gangs)
    refused = [gang for gang in result.gangs if gang.verdict != "placed"]
    for gang in refused[:ROWS_MAX]:
        yield from _refusal(gang)
    if len(refused) > ROWS_MAX:
        yield from ("", f"{_further(len(refused) - ROWS_MAX)} refused.")
    if isinstance(result.copies, UnsetType):
        placed = [gang for gang in result.gangs if gang.assignments]
        for gang in placed[:ROWS_MAX]:
            yield from _placement(gang)
    if warnings:
        yield from ("", "### Warnings", "")
        yield from bullets(warnings)
    nodes = sum(gang.search.nodes for gang in result.gangs)
    proved = all(gang.search.exhausted for gang in result.gangs)
    proof = (
        "the answers are proved" if proved else "a larger `--search-budget` may give another answer"
    )
    yield from ("", f"<sub>gang-extender plan: {counted(nodes, 'search node')}, {proof}.</sub>")


def _headline(result: PlanAnswer) -> str:
    copies = result.copies
    if not isinstance(copies, UnsetType):
        at_least = "At least " if copies.limited else ""
        of_requested = f" of {copies.wanted}" if copies.wanted else ""
        singular = copies.fit == 1 and not copies.wanted
        return f"{at_least}{copies.fit}{of_requested} {'copy fits' if singular else 'copies fit'}"
    if not result.gangs:
        return "Nothing to plan"
    counts = Counter(gang.verdict for gang in result.gangs)
    if len(result.gangs) == 1 or len(counts) == 1:
        return HEADLINES[result.gangs[0].verdict]
    return ", ".join(f"{counts[word]} {ANSWERS[word]}" for word in BEST_TO_WORST if counts[word])


def _overview(gangs: Sequence[GangVerdict]) -> Iterator[str]:
    def row(gang: GangVerdict) -> tuple[str, ...]:
        total = len(gang.assignments) + len(gang.unplaced)
        evicted = sum(len(unit.pods) for unit in gang.victims)
        copy = "" if isinstance(gang.copy, UnsetType) else f" (copy {gang.copy})"
        return (
            f"{tree_name(gang)}{copy}",
            f"**{ANSWERS[gang.verdict]}**",
            f"{len(gang.assignments)} of {total}",
            str(len({line.node for line in gang.assignments})),
            counted(evicted, "pod") if evicted else "none",
        )

    headers = ("workload", "answer", "pods placed", "nodes", "evicts")
    yield from table(headers, [row(gang) for gang in gangs])


def _refusal(gang: GangVerdict) -> Iterator[str]:
    yield from ("", f"### Why {tree_name(gang)} {ANSWERS[gang.verdict]}", "")
    reasons = [*gang.reasons]
    reasons += [
        f"cannot hold together: {conflict.object}: {conflict.message}" for conflict in gang.conflict
    ]
    if gang.when_empty:
        reasons.append(WHEN_EMPTY[gang.when_empty])
    yield from bullets(reasons)
    if gang.help:
        yield from ("", "**What would help** (each was verified by a plan):", "")
        yield from bullets(gang.help)


def _placement(gang: GangVerdict) -> Iterator[str]:
    nodes: dict[str, set[str]] = {}
    for line in gang.assignments:
        nodes.setdefault(line.group, set()).add(line.node)
    rows = [
        (
            group,
            ", ".join(f"{key}={value}" for key, value in gang.domains.get(group, {}).items()),
            ", ".join(shortened(sorted(node_names))),
        )
        for group, node_names in nodes.items()
    ]
    if slices := slice_texts(gang.domains):
        yield from ("", f"**Where the slices of {escaped(tree_name(gang))} are:**", "")
        yield from bullets(slices)
    if gang.wishes:
        yield from ("", f"**What the wishes of {escaped(tree_name(gang))} reached:**", "")
        yield from bullets(shown_texts(gang.wishes))
    yield from ("", f"<details><summary>Where {escaped(tree_name(gang))} runs</summary>", "")
    yield from table(("group", "domain", "nodes"), rows)
    if gang.victims:
        yield from ("", "It evicts:", "")
        yield from bullets(f"{unit.unit}: {', '.join(unit.pods)}" for unit in gang.victims)
    if gang.unplaced:
        more = len(gang.unplaced) - PODS_SHOWN
        shown = ", ".join(gang.unplaced[:PODS_SHOWN]) + (f" and {more} more" if more > 0 else "")
        yield from ("", f"Without a node: {escaped(shown)}.")
    yield from ("", "</details>")


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], most: int = ROWS_MAX
) -> Iterator[str]:
    """Yield the lines of a table, with `most` rows at most and how many more there are."""
    yield f"| {' | '.join(headers)} |"
    yield f"|{'---|' * len(headers)}"
    for row in rows[:most]:
        yield f"| {' | '.join(escaped(cell) for cell in row)} |"
    if len(rows) > most:
        yield from ("", f"and {len(rows) - most} more")


def bullets(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a list, `ROWS_MAX` at most and how many more there are."""
    entries = list(texts)
    for text in entries[:ROWS_MAX]:
        yield f"- {escaped(text)}"
    if len(entries) > ROWS_MAX:
        yield f"- and {len(entries) - ROWS_MAX} more"


def escaped(text: str) -> str:
    """Return a text in which nothing is markup but our own bold type, on one line."""
    for sign in ("\\", "|", "<", ">", "`", "_", "[", "]", "~", "#"):
        text = text.replace(sign, {"<": "&lt;", ">": "&gt;"}.get(sign, "\\" + sign))
    return " ".join(text.split())


def _further(count: int) -> str:
    return "1 further tree was" if count == 1 else f"{count} further trees were"
