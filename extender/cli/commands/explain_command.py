"""`explain`: why an object is in its state, and what would help, from a running service."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

import typer

from extender.cli.commands.gang_commands import elsewhere, minimum_text, root_path
from extender.cli.completion.live_names import complete_objects
from extender.cli.connection.service_client import Ask, Server, ask_service, asks
from extender.cli.options.list_options import ValueForm, past_text
from extender.cli.output.printing import Output, console, print_table, print_value
from extender.core.model.errors import BadInput, NotFound
from extender.core.model.message_formatting import labels_text
from extender.queries.explain.explanation import Check, Explanation
from extender.queries.log.preemption_dto import PreemptionLine
from extender.queries.state.state_dto import GangAt

WITHIN_S = 90.0  # a plan may be needed, and others may wait before it
MARKS = {"yes": "yes", "no": "NO", "unknown": "?", "not reached": "-", "not recorded": "?"}
MEMBERS_MAX = 30  # in the table; -o json has all


def explain(
    name: Annotated[
        str, typer.Argument(help="NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME of a group, pod, workload or node.", autocompletion=complete_objects)
    ],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Namespace of a NAME without one.")] = "default",
    why_preempted: Annotated[
        bool, typer.Option("--why-preempted", help="Explain the newest preemption that evicted this pod or group: by whom, why it, and how it ended.")
    ] = False,
    at: Annotated[str, typer.Option("--at", help="A position of the log, or a time as for --since of `events`: explain from the log how it was then.")] = "",
    server: Server = None,
    output: ValueForm = Output.table,
) -> None:  # fmt: skip
    """Explain why a group, pod, workload or node is in its state, and what would help."""
    if why_preempted and at:
        raise BadInput("--at and --why-preempted: give only one of them")
    at = past_text(at, "--at")
    if why_preempted:
        _explain_preemption(asks(server), name, namespace, output)
        return
    query = urlencode({"name": name, "namespace": namespace} | ({"at": at} if at else {}))
    explanation = ask_service(server, f"/v1/explain?{query}", Explanation, within_s=WITHIN_S)
    if output is not Output.table:
        print_value(explanation, output)
        return
    print_explanation(explanation)


def _explain_preemption(ask: Ask, name: str, namespace: str, output: Output) -> None:
    preemptions: list[PreemptionLine] = []
    try:
        victim = root_path(name, namespace, ask)
        preemptions = _preemptions_of(ask, victim)
        other = "" if preemptions else elsewhere(ask, name, namespace)
    except BadInput:
        if not (other := elsewhere(ask, name, namespace)):
            raise
    if other:
        victim = root_path(other, namespace, ask)
        preemptions = _preemptions_of(ask, victim)
    if not preemptions:
        raise NotFound(
            f"{victim}: the log has no preemption of this pod or group; `gang-extender explain {victim}` has its state"
        )
    newest = max(preemptions, key=lambda line: line.position)
    if output is not Output.table:
        print_value(newest, output)
        return
    out = console(wrap=False)
    out.print(newest.explanation)
    out.print(f"Its pods: gang-extender preemptions --victim {victim}")


def _preemptions_of(ask: Ask, victim: str) -> list[PreemptionLine]:
    return ask(f"/v1/preemptions?{urlencode({'victim': victim})}", list[PreemptionLine])


def print_explanation(explanation: Explanation) -> None:
    """Print an explanation for people: the answer, the checks, what would help, its wishes and the members."""
    out = console(wrap=False)
    out.print(explanation.answer)
    for related in explanation.related:
        out.print(f"  {related.relation}: {related.kind} {related.name}")
    if explanation.checks:
        out.print("Why:")
        for check in explanation.checks:
            out.print(f"  {_check(check)}")
        for reason in explanation.reasons:
            out.print(f"      {reason}")
        for line in explanation.conflict:
            out.print(f"      cannot hold together: {line}")
    if explanation.help:
        out.print("What would help:")
        for text in explanation.help:
            out.print(f"  {text}")
    wishes = (*explanation.wishes, *(f"{line.group}: {line.text}" for line in explanation.better))
    if wishes:
        out.print("What its wishes reached when it was planned:")
        out.print("\n".join(f"  {text}" for text in wishes))
    if explanation.gang is not None:
        _print_members(explanation.gang)
    for text in explanation.limitations:
        out.print(text)


def _check(check: Check) -> str:
    texts = ("not recorded" if check.outcome == "not recorded" else "", check.text)
    text = "; ".join(text for text in texts if text)
    return f"{MARKS[check.outcome]:<4}{check.check}{f': {text}' if text else ''}"


def _print_members(gang: GangAt) -> None:
    minimum = minimum_text(gang)
    shown = f" {minimum} of the minimum," if minimum else ""
    console().print(
        f"{gang.kind} {gang.gang}: {gang.state},{shown} {gang.bound} bound, {gang.reserved} reserved"
    )
    for group in sorted(gang.groups, key=lambda group: group.name):
        if group.domain:
            console().print(f"  {group.name} in {labels_text(group.domain)}")
    rows = [
        (m.pod, m.group, m.node, m.state + (" (extra)" if m.extra else ""))
        for m in gang.members[:MEMBERS_MAX]
    ]
    print_table(("pod", "group", "node", "state"), rows, empty="No members are reserved or bound.")
    if len(gang.members) > MEMBERS_MAX:
        console().print(f"  and {len(gang.members) - MEMBERS_MAX} more; -o json has all")
