"""Makes recorded decisions again, with the version of gang-extender of the interpreter that runs this file.

`replay_processes` runs the file by its path, so nothing of this version is imported at the top. A frame is its length in
8 bytes and a value in msgpack. First the process writes what it is; then it reads batches and writes an answer for each.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

LENGTH = struct.Struct("<Q")
TREES = ("TreeCompiled", "TreeRefused")  # decisions of the compiler of trees: no search


class Batch(msgspec.Struct):
    """Decisions in the order of the log, with the parts of their inputs, each once."""

    parts: list[bytes]
    decisions: list[BatchDecision]
    budget: int | None  # search nodes in the place of those of the inputs; None: theirs


class BatchDecision(msgspec.Struct):
    """A decision as `StoredDecision` has it, with numbers for its parts."""

    position: int
    type: str
    data: bytes  # JSON
    digest: str
    head: bytes
    parts: list[int]


class BatchAnswer(msgspec.Struct):
    """A `ReplayResult` of the version that replayed, or why there is none."""

    position: int
    result: dict[str, Any] | None = None
    error: str = ""


class Greeting(msgspec.Struct):
    """What replays: the version, and the file of its package."""

    version: str
    planner: str
    package: str


def read_frame(stream: BinaryIO) -> bytes | None:
    """Return the next frame; None at the end of the stream."""
    size = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(size)[0]) if len(size) == LENGTH.size else None


def frame_of(value: object) -> bytes:
    """Return a value as a frame."""
    body = msgspec.msgpack.encode(value)
    return LENGTH.pack(len(body)) + body


def main() -> None:
    """Answer batches from stdin until it ends."""
    import extender
    from extender.core.planner.plan_types import PLANNER_VERSION
    from extender.queries.log import decision_replay
    from extender.queries.log.decision_details import StoredDecision

    replayer = getattr(decision_replay, "DecisionReplayer", None)  # older versions have none
    replay = replayer().replay if replayer is not None else decision_replay.replay_decision
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no frame
    greeting = Greeting(extender.__version__, PLANNER_VERSION, str(extender.__file__))
    answers.write(frame_of(greeting))
    answers.flush()
    while (body := read_frame(sys.stdin.buffer)) is not None:
        batch = msgspec.msgpack.decode(body, type=Batch)
        answers.write(
            frame_of([_answer(d, batch, StoredDecision, replay) for d in batch.decisions])
        )
        answers.flush()


def _answer(
    decision: BatchDecision,
    batch: Batch,
    stored_type: Any,  # noqa: ANN401 -- a class of another version
    replay: Callable[..., Any],
) -> BatchAnswer:
    parts = tuple(batch.parts[number] for number in decision.parts)
    data, digest, head = decision.data, decision.digest, decision.head
    if batch.budget is not None:
        data, digest, head = _with_budget(decision, parts, batch.budget)
    stored = stored_type(
        position=decision.position, type=decision.type, data=msgspec.Raw(data),
        digest=digest, head=head, parts=parts,
    )  # fmt: skip
    try:
        decoded = stored.decoded()
        result = replay(decoded.position, decoded.data, decoded.input)
    except Exception as error:  # noqa: BLE001 -- of any version: the answer names it, and the next decision follows
        return BatchAnswer(decision.position, error=f"{type(error).__name__}: {error}")
    return BatchAnswer(decision.position, result=msgspec.to_builtins(result))


def _with_budget(
    decision: BatchDecision, parts: tuple[bytes, ...], budget: int
) -> tuple[bytes, str, bytes]:
    """Return data, digest and head of a decision whose input has another search budget; as they are where it has none."""
    data = msgspec.json.decode(decision.data)
    # the latter is an answer of the preempt verb
    if decision.type in TREES or data.get("kind") == "Pod":
        return decision.data, decision.digest, decision.head
    head = msgspec.json.decode(decision.head)
    changed = msgspec.json.encode(head | {"budget": budget})
    hashes = b"".join(hashlib.sha256(body).digest() for body in (changed, *parts))
    digest = hashlib.sha256(hashes).hexdigest()
    return msgspec.json.encode(data | {"input_digest": digest}), digest, changed


if __name__ == "__main__":
    main()
