"""Print the answers to plan queries for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import UnsetType

from extender.cli.output.printing import console, print_table, visible
from extender.core.admit.gang_sentences import shown_texts
from extender.core.model.message_formatting import (
    counted,
    domain_text,
    join_names,
    label_text,
    labels_text,
)
from extender.core.planner.plan_types import SLICE_MARK
from extender.queries.plan.plan_dto import BEST_TO_WORST, CopiesLine, GangVerdict, PlanAnswer

NODES_SHOWN = 8  # of a leaf; all of them are in -o json
WHEN_EMPTY = {
    "fits": "it fits when no other pod runs",
    "never": "it can never be placed on these nodes, also when no other pod runs",
    "unknown": "whether it fits when no other pod runs is not known: the search budget was used up",
}


def print_plan(result: PlanAnswer, *, files: bool) -> None:
    """Print the answer to a plan query."""
    if not isinstance(result.given, UnsetType):
        console().print(f"Planned {'; '.join(result.given)}.")
    if not result.gangs:
        others = (
            "--all-pending adds the pending trees of the cluster" if files else "-f FILE names some"
        )
        where = "the files of -f have" if files else "the cluster has"
        missing = (
            "no group, no pending pod and no workload that needs pods"
            if files
            else "no group and no pending pod"
        )
        console().print(f"Nothing to plan: {where} {missing}; {others}.")
        return
    if not isinstance(result.copies, UnsetType):
        _print_copies(result.gangs, result.copies)
        return
    for gang in result.gangs:
        _print_gang(gang)
    if len(result.gangs) > 1:
        console().print(_total(result.gangs))


def _total(gangs: Sequence[GangVerdict]) -> str:
    """Return how many trees got which verdict, such as `3 trees in queue order: 2 placed, 1 impossible`."""
    counts = Counter(gang.verdict for gang in gangs)
    shown = ", ".join(f"{counts[word]} {word}" for word in BEST_TO_WORST if counts[word])
    return f"{len(gangs)} trees in queue order: {shown}"


def _print_copies(gangs: Sequence[GangVerdict], copies: CopiesLine) -> None:
    """Print how many copies fit, where they are, and why the next one does not fit."""
    from rich.text import Text

    out = console()
    refused = [gang for gang in gangs if gang.verdict != "placed"]
    first = [gang for gang in gangs if gang.copy == 1]
    subject = tree_name(first[0]) if len(first) == 1 else f"the {len(first)} trees"
    fit = f"{copies.fit} of {copies.wanted}" if copies.wanted else str(copies.fit)
    at_least = "at least " if copies.limited else ""
    noun = "copy" if copies.fit == 1 and not copies.wanted else "copies"
    verb = "fits" if fit == "1" else "fit"
    end = "; more were not tried" if copies.limited else ""
    text = f"{at_least}{fit} {noun} of {subject} {verb}{end}"
    out.print(Text(visible(text[0].upper() + text[1:]), style="bold"))
    rows = [_copy_row(gang) for gang in gangs if gang.verdict == "placed"]
    if rows and copies.wanted:
        print_table(("copy", "tree", "pods", "evicts", "domain", "nodes"), rows, empty="")
    for gang in refused:
        proof = "proved" if gang.search.exhausted else "not proved"
        out.print(f"Copy {gang.copy} ({tree_name(gang)}) does not fit: {gang.verdict}, {proof}")
        for reason in gang.reasons:
            out.print(f"  {reason}")
        for text in gang.help:
            out.print(f"  would help: {text}")
    if refused and not copies.proved:
        out.print("More copies may fit: the search budget was used up; --search-budget allows more")


def _print_gang(gang: GangVerdict) -> None:
    from rich.text import Text

    out = console()
    proof = "proved" if gang.search.exhausted else "not proved"
    head = Text(visible(f"{tree_name(gang)}: {gang.verdict}"), style="bold")
    head.append(
        f" ({len(gang.assignments)} placed, {len(gang.unplaced)} without a node; "
        f"{counted(gang.search.nodes, 'search node')}, {proof})",
        style="not bold",
    )
    out.print(head)
    _print_reasons(gang)
    rows = []
    for line in gang.assignments:
        domain = gang.domains.get(line.group, {})
        rows.append((line.pod, line.group, line.node, labels_text(domain)))
    for victim in gang.victims:
        out.print(f"  evicts {victim.unit}: " + ", ".join(victim.pods))
    if gang.workload and gang.groups:
        _print_tree(gang)
    elif rows:
        print_table(("pod", "group", "node", "domain of the group"), rows, empty="")
    if gang.unplaced and gang.assignments:
        out.print("  without a node: " + ", ".join(gang.unplaced))


def tree_name(gang: GangVerdict) -> str:
    """Return kind and name of a tree, and of the workload that it was made from."""
    name = f"{gang.kind} {gang.gang}"
    return f"{gang.workload} ({name})" if gang.workload and gang.groups else name


def _print_reasons(gang: GangVerdict) -> None:
    out = console(wrap=False)  # a reason is one line, also for grep
    helps = (f"would help: {text}" for text in gang.help)
    texts = (*_reasons(gang), *helps, *slice_texts(gang.domains), *shown_texts(gang.wishes))
    for text in texts:
        out.print(f"  {text}")


def _reasons(gang: GangVerdict) -> Iterator[str]:
    yield from gang.reasons
    for conflict in gang.conflict:
        yield f"cannot hold together: {conflict.object}: {conflict.message}"
    if gang.when_empty:
        yield WHEN_EMPTY[gang.when_empty]


def slice_texts(domains: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return for each leaf with slices the domain of each, `train: slice 0 in net/rack=r1, 1 in net/rack=r2`."""
    slices: dict[str, list[str]] = {}
    for name, domain in domains.items():
        leaf, mark, number = name.partition(SLICE_MARK)
        if mark:
            where = " and ".join(label_text(*label) for label in domain.items())
            slices.setdefault(leaf, []).append(f"{number} in {where}")
    texts = []
    for leaf, places in slices.items():
        left = len(places) - NODES_SHOWN
        more = f", and {left} more" if left > 0 else ""
        texts.append(f"{leaf}: slice {', '.join(places[:NODES_SHOWN])}{more}")
    return texts


def _copy_row(gang: GangVerdict) -> tuple[str, ...]:
    nodes = sorted({line.node for line in gang.assignments})
    domain = gang.domains.get(gang.gang.partition("/")[2], {})
    return (
        str(gang.copy),
        gang.gang,
        str(len(gang.assignments)),
        counted(sum(len(unit.pods) for unit in gang.victims), "pod") if gang.victims else "",
        "/".join(domain_text(*label) for label in domain.items()),
        ", ".join(shortened(nodes)),
    )


def _print_tree(gang: GangVerdict) -> None:
    """Print the groups of a workload as a tree, each leaf with its nodes."""
    from rich.text import Text
    from rich.tree import Tree

    nodes: dict[str, list[str]] = {}
    for line in gang.assignments:
        nodes.setdefault(line.group, []).append(line.node)
    branches: dict[str, Tree] = {}
    top: Tree | None = None
    started = {name for step in gang.steps for name in step.groups}
    in_steps = {group.parent for group in gang.groups if group.group in started}
    for group in gang.groups:
        unit = "pod" if group.kind == "PodGroup" else "group"
        alone = "one after the other" if group.group in in_steps else "each for itself"
        need = f"{group.minimum} needed together" if group.minimum else alone
        domain = gang.domains.get(group.group, {})
        words = [f"{group.placed} of {counted(group.total, unit)} placed, {need}"]
        words += [label_text(*label) for label in domain.items()]
        if group.kind == "PodGroup":
            words += shortened(sorted(set(nodes.get(group.group, ()))))
        text = Text(visible(f"{group.role}: ") if group.role else "", style="bold")
        text.append(visible(f"{group.group}: {', '.join(words)}"), style="not bold")
        if group.parent in branches:
            branch = branches[group.parent].add(text)
        else:
            branch = top = Tree(text)
        if group.kind == "CompositePodGroup":
            branches[group.group] = branch
    if top is not None:
        console().print(top)


def shortened(nodes: list[str]) -> list[str]:
    """Return the first names of a list, and how many more there are."""
    left = len(nodes) - NODES_SHOWN
    return nodes if left <= 0 else [*nodes[:NODES_SHOWN], f"and {counted(left, 'more node')}"]


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
        left = len(refused) - ROWS_MAX
        further = "1 further tree was" if left == 1 else f"{left} further trees were"
        yield from ("", f"{further} refused.")
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
    yield from bullets(_reasons(gang))
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
            labels_text(gang.domains.get(group, {})),
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
        yield from ("", f"Without a node: {escaped(join_names(gang.unplaced, PODS_SHOWN))}.")
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
