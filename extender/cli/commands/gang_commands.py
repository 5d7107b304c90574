"""`gangs` and `trees`: lists of a running service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urlencode

from msgspec.structs import replace

from extender.cli.connection.service_client import Ask, Server, ServiceList, asks
from extender.cli.options.list_options import Selector, States, Watch, Where
from extender.cli.output.list_table import (
    Column,
    ListFormat,
    ListTable,
    age_column,
    number_column,
    time_column,
)
from extender.core.model.errors import BadInput
from extender.core.model.message_formatting import join_names, parse_time, spaced
from extender.queries.log.parameter_validation import checked_name, checked_path
from extender.queries.state.gang_selection import GANG_STATES, TREE_STATES
from extender.queries.state.state_dto import GangAt
from extender.queries.state.workload_trees import TreeAt
from extender.runtime.system_clock import SystemClock


def root_path(name: str, namespace: str, ask: Ask | None = None) -> str:
    """Return NAMESPACE/NAME of a root group or a pod; `namespace` is the default.

    Any name that `explain` takes: the kind of a group or a pod, as `-o name` prints it, is left out, and a workload is the
    root group that it became. KIND/NAME of a workload that only one other namespace has is found there.

    Args:
        ask: Asks the service, which knows the groups of workloads; None: the database is read.

    Raises:
        BadInput: It is no name, or one of a node, or of a workload that has no group or several.
    """
    from extender.queries.explain.name_lookup import WORKLOAD_KINDS, parse_name

    try:
        parsed = parse_name(name, namespace)
    except BadInput as fault:
        raise BadInput(
            f"gang {name!r} is not NAME or NAMESPACE/NAME, with or without a kind before it"
        ) from fault
    path = f"{parsed.namespace}/{parsed.name}"
    if parsed.kind == "Node":
        raise BadInput(
            f"gang {name!r}: a node is no gang; `gang-extender explain {name}` has its pods"
        )
    if parsed.kind not in WORKLOAD_KINDS:
        return path
    if ask is None:
        raise BadInput(
            f"gang {name!r}: the database does not name the groups of workloads; name the root group, or ask the service with --server"
        )
    trees = ask(f"/v1/trees?{urlencode({'namespace': parsed.namespace})}", list[TreeAt])
    roots = [
        root.name
        for tree in trees
        if (tree.kind, tree.workload) == (parsed.kind, path)
        for root in tree.roots
    ]
    if not roots and not parsed.given_namespace:
        other = elsewhere(ask, name, namespace)
        if other.partition("/")[0] == parsed.kind and other != f"{parsed.kind}/{path}":
            return root_path(other, namespace, ask)
    if len(roots) != 1:
        groups = (
            f"several root groups, name one of them: {join_names(roots)}"
            if roots
            else "no group now"
        )
        raise BadInput(
            f"{parsed.kind} {path} has {groups}; `gang-extender trees` lists the trees of workloads"
        )
    return f"{parsed.namespace}/{roots[0].rpartition('/')[2]}"


def path_or_name(name: str, namespace: str, ask: Ask | None, *, only: bool = False) -> str:
    """Return what `root_path` does; of a name without a namespace only the name.

    The log may have such a name in another namespace, see `gang_of_name`.

    Args:
        namespace: Where a name without one is looked for first.
        only: Whether it is looked for only there.
    """
    from extender.queries.explain.name_lookup import WORKLOAD_KINDS, parse_name

    path = root_path(name, namespace, ask)
    parsed = parse_name(name, namespace)
    given = only or parsed.given_namespace or parsed.kind in WORKLOAD_KINDS
    return checked_path(path, "gang") if given else checked_name(parsed.name, "gang")


def elsewhere(ask: Ask, text: str, namespace: str) -> str:
    """Return KIND/NAMESPACE/NAME of a name without a namespace that exists in one other namespace only, or nothing."""
    from extender.queries.explain.name_lookup import SEARCH_LIMIT_MAX, NameSearch, parse_name

    try:
        parsed = parse_name(text, namespace)
    except BadInput:
        return ""
    if parsed.given_namespace:
        return ""
    query = urlencode({"q": parsed.name, "limit": SEARCH_LIMIT_MAX})
    same = [
        hit
        for hit in ask(f"/v1/search?{query}", NameSearch).found
        if hit.name.endswith(f"/{parsed.name}") and parsed.kind in ("", hit.kind)
    ]
    spaces = {hit.name.partition("/")[0] for hit in same}
    return f"{same[0].kind}/{same[0].name}" if len(spaces) == 1 else ""


def gangs(
    *, where: Where, selector: Selector = "", states: States = None, watch: Watch = False,
    output_format: ListFormat, server: Server = None,
) -> None:  # fmt: skip
    """List the gangs of the service, with their state."""
    part = where.part(states, GANG_STATES, selector)
    table = ListTable(gang_columns(SystemClock().now_us), gang_name, output_format)
    ask = asks(server, watch=watch)
    gang_list = ServiceList(ask, partial(ask, part.path("/v1/gangs"), list[GangAt]), table)
    if watch:
        gang_list.watch(
            lambda line: line.uid or gang_name(line), lambda line: replace(line, state="removed")
        )
    else:
        gang_list.print(f"No gangs{part.words()}.")


def gang_columns(now_us: Callable[[], int]) -> Sequence[Column[GangAt]]:
    """Return the columns of gangs; `now_us`: returns the time up to which ages count, in microseconds since the epoch."""
    return (
        Column(title="gang", text=lambda line: line.gang),
        Column(title="kind", text=lambda line: line.kind, gives_way=5),
        number_column("priority", lambda line: line.priority, gives_way=2),
        Column(title="state", text=lambda line: line.state, colored=True),
        number_column("reserved", lambda line: line.reserved, gives_way=3),
        number_column("bound", lambda line: line.bound, gives_way=4),
        Column(title="minimum", text=minimum_text, key=_present),
        age_column("age", lambda line: micros_of(line.observed), now_us, gives_way=1),
        age_column("waits", lambda line: micros_of(line.waiting_since), now_us),
        Column(title="uid", text=lambda line: line.uid, wide=True),
        Column(title="outcome", text=lambda line: line.outcome, wide=True),
        time_column("observed", lambda line: line.observed, wide=True),
        time_column("admitted", lambda line: line.admitted, wide=True),
        time_column("decided", lambda line: line.last_decision_time, wide=True),
        Column(title="workload", text=lambda line: spaced(line.workload), gives_way=6),
        Column(title="reason", text=lambda line: line.reasons[0] if line.reasons else ""),
    )


def gang_name(line: GangAt) -> str:
    """Return Kind/namespace/name, which `explain` and `history` take."""
    return f"{line.kind}/{line.gang}"


def minimum_text(line: GangAt) -> str:
    """Return how many pods of the minimum of a gang are there, `3/8`; empty before its first admission."""
    return f"{line.minimum_present}/{line.minimum_needed}" if line.minimum_needed else ""


def _present(line: GangAt) -> float | None:
    return line.minimum_present / line.minimum_needed if line.minimum_needed else None


def micros_of(time: str) -> int | None:
    """Return a time of RFC 3339 as microseconds since the epoch; None: it is empty."""
    return parse_time(time, "time") if time else None


ROOTS_SHOWN_MAX = 3


def trees(
    *, where: Where, selector: Selector = "", states: States = None, watch: Watch = False,
    output_format: ListFormat, server: Server = None,
) -> None:  # fmt: skip
    """List workloads with a tree label: their root groups and states, or why no tree can be made."""
    part = where.part(states, TREE_STATES, selector)
    table = ListTable(_COLUMNS, lambda line: f"{line.kind}/{line.workload}", output_format)
    ask = asks(server, watch=watch)
    tree_list = ServiceList(ask, partial(ask, part.path("/v1/trees"), list[TreeAt]), table)
    if watch:
        tree_list.watch(lambda line: line.uid, lambda line: replace(line, outcome="removed"))
    elif part.restricted:
        tree_list.print(f"No workload with a tree{part.words()}.")
    else:
        tree_list.print(
            "No workload has the label gang-extender.dev/tree; label it, or its namespace, and create it again."
        )


def _roots(line: TreeAt) -> str:
    roots = [root.name + (f" ({root.state})" if root.state else "") for root in line.roots]
    return join_names(roots, ROOTS_SHOWN_MAX)


_COLUMNS: tuple[Column[TreeAt], ...] = (
    Column(title="workload", text=lambda line: line.workload),
    Column(title="kind", text=lambda line: line.kind),
    Column(title="profile", text=lambda line: line.profile),
    Column(title="outcome", text=lambda line: line.outcome, colored=True),
    number_column("groups", lambda line: line.groups),
    number_column("generation", lambda line: line.generation, wide=True),
    number_column("position", lambda line: line.position, wide=True),
    time_column("compiled", lambda line: line.time, wide=True),
    Column(title="uid", text=lambda line: line.uid, wide=True),
    Column(title="owner", text=lambda line: line.owner, wide=True),
    Column(title="roots", text=_roots),
    Column(
        title="reason",
        text=lambda line: line.message or "; ".join(one.message for one in line.notices),
    ),
)
