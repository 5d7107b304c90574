"""POST /v1/plan: the question of `gang-extender plan` as one JSON body, read and answered in the process it is run in."""

from __future__ import annotations

from typing import cast

import msgspec

from extender.cluster.documents import Document, Value
from extender.cluster.manifest import Entry, Role, build, complete, objects_in
from extender.core.errors import BadInput
from extender.service.whatif import PlanQuestion, PlanReply, Question, answer, questionable


def planned(body: bytes) -> bytes:
    """Answer a question.

    Args:
        body: JSON of a `PlanQuestion`.

    Returns:
        JSON of a `PlanReply`.

    Raises:
        BadInput: Names object, field and value.
    """
    try:
        asked = msgspec.json.decode(body, type=PlanQuestion)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BadInput(f"body: {error}") from error
    entries = (*_read(asked.cluster, Role.CLUSTER), *_read(asked.wanted, Role.WANTED))
    try:
        found = build(complete(entries))
    except RecursionError as error:
        raise BadInput("body: nested too deep") from error
    question = Question(
        groups=frozenset(found.groups),
        pods=frozenset(found.pods),
        all_pending=asked.all_pending or not asked.wanted,
        budget=asked.budget,
        preemption=asked.preemption,
        order=found.order,
    )
    odd = questionable(found.world.view, question)
    told = answer(found.world.view, question)
    warnings = tuple(dict.fromkeys((*found.warnings, *odd)))
    reply = PlanReply(verdict=told.verdict, roots=told.roots, warnings=warnings)
    return msgspec.json.encode(reply)


def _read(objects: tuple[dict[str, object], ...], role: Role) -> tuple[Entry, ...]:
    field = "cluster" if role is Role.CLUSTER else "wanted"
    return tuple(
        entry
        for number, value in enumerate(objects)
        for entry in objects_in(
            Document(where=f"body: {field}[{number}]", value=cast("Value", value)), role
        )
    )
