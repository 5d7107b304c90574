"""`verify`: the log against its hashes and anchors, and what is stored beside it against the log. `keys`: the keys that sign anchors.

Without a database, the last verification of the service is asked for: the leader verifies the whole log again and again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
import yaml

from extender import settings as settings_module
from extender.cli.commands.history_commands import LogPlace
from extender.cli.connection.kubectl import Kubectl
from extender.cli.connection.service_client import Ask
from extender.cli.options.list_options import ValueForm
from extender.cli.output.printing import Output, console, print_value
from extender.core.log.anchors import Anchor, decode_anchors
from extender.core.model.errors import BadInput, CorruptLog, SchemaOutdated
from extender.core.model.ids import Position
from extender.core.model.message_formatting import counted
from extender.ports.query_ports import EventFilter
from extender.ports.written_names import LOG_HEAD_CONFIGMAP, NAMESPACE
from extender.queries.log.event_dto import event_line
from extender.queries.log.gang_history import HistoryLine
from extender.queries.state.service_status import FindingLine, ServiceStatus
from extender.runtime.log_keys import make_key, parse_keys, public_blocks, read_keys

if TYPE_CHECKING:
    from extender.composition import Store
    from extender.queries.verification.log_verification import Verdict

FROM_CLUSTER = "cluster"
BESIDE_DATABASE = "log-end.json"  # of a service with --cluster


class Anchors(msgspec.Struct, frozen=True):
    """Anchors, and where they are from; an empty place if none were given."""

    place: str
    anchors: tuple[Anchor, ...]


def find_anchors(given: str | None, data_dir: str, *, embedded: bool) -> Anchors:
    """Return the anchors to compare with.

    Args:
        given: Value of --anchors: a file, or `cluster`.
        embedded: Whether the log is in it; then the file beside it is used if no other is given.
    """
    if given == FROM_CLUSTER:
        place = f"ConfigMap {NAMESPACE}/{LOG_HEAD_CONFIGMAP}"
        body = Kubectl(None, None).config_map(NAMESPACE, LOG_HEAD_CONFIGMAP)
        return Anchors(place, _parsed(body, place))
    if given is not None:
        return Anchors(given, _parsed(_read(Path(given)), given))
    beside = Path(data_dir) / BESIDE_DATABASE
    if embedded and beside.exists():
        return Anchors(str(beside), _parsed(_read(beside), str(beside)))
    return Anchors("", ())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"--anchors: {path} cannot be read: {error.strerror}") from error


def _parsed(text: bytes, place: str) -> tuple[Anchor, ...]:
    """Return the anchors of a ConfigMap in YAML or JSON, or of its data alone."""
    try:
        document = yaml.safe_load(text)
        data = document.get("data", document) if isinstance(document, dict) else document
        anchors = decode_anchors(msgspec.json.encode(data))
    except (yaml.YAMLError, ValueError, UnicodeError) as error:
        problem = str(error).partition("\n")[0]
        raise BadInput(
            f"--anchors: {place} is not a copy of ConfigMap {LOG_HEAD_CONFIGMAP}: {problem}; save one with kubectl -n "
            f"{NAMESPACE} get configmap {LOG_HEAD_CONFIGMAP} -o yaml"
        ) from error
    if not anchors:
        raise BadInput(f"--anchors: {place} has no anchor; was anything published?")
    return anchors


STEP_EVENTS = 20_000
LOSSES_MAX = 1000
SERVED = "the service"  # where the anchors are from that it compared
BY_DATABASE = (
    "read the log in its database: gang-extender verify --database-url URL --anchors FILE|cluster"
)


class VerifyReport(msgspec.Struct):
    """The result as JSON and YAML."""

    verified_position: int
    anchors_from: str  # empty: no anchors were compared
    anchors: int
    signed: int | None  # anchors with a valid signature; None: the service does not report it
    findings: list[FindingLine]
    losses: list[str]  # recorded losses of history
    definitions: int  # of the schema that were compared; 0: it is of another version
    # login roles that can change what was compared, each with what lets it
    privileged_roles: list[str]


def verify(
    *,
    anchors: Annotated[
        str | None,
        typer.Option(
            help="Anchors to compare with: a file with ConfigMap gang-extender-log as YAML or JSON, or `cluster` to read it "
            "with kubectl; unset: log-end.json beside an embedded database, if it is there.",
            metavar="FILE|cluster",
        ),
    ] = None,
    keys: Annotated[
        str | None, typer.Option(help="File with the public or private keys that sign anchors; unset: GANG_EXTENDER_ANCHOR_KEY_FILE.", metavar="FILE")
    ] = None,
    place: LogPlace,
    output: ValueForm = Output.table,
) -> None:  # fmt: skip
    """Verify the whole log, and what is stored beside it. Exit 1 when something was changed behind the back of the service.

    With --database-url or --data-dir the log is read and verified here. Without, the leader is asked for its last verification of
    the whole log; that is its own word, so after an intrusion verify the database, with anchors that are kept elsewhere.

    Compares all hashes with the events, the log with the published anchors, snapshots, interval tables, inputs of decisions
    and the index of names with the log, and views, functions, triggers and rights with the migrations. Also lists recorded losses of history (an older copy of the database).
    """
    source = place.source()
    if source is not None:
        for option, value in (("--anchors", anchors), ("--keys", keys)):
            if value is not None:
                raise BadInput(
                    f"{option} {value}: is compared with the log in the database; name it with --database-url or --data-dir. "
                    "A service compares with the anchors that it published, and checks them with its own key"
                )
        _verify_served(source, output)
        return
    settings = settings_module.load_for_log(
        place.database_url, place.data_dir, anchor_key_file=keys
    )
    log_keys = read_keys(settings.anchor_key_file, "--keys" if keys else "--anchor-key-file")
    embedded = not settings.database_url
    anchor_set = find_anchors(anchors, settings.data_dir, embedded=embedded)

    async def question(opened: Store) -> tuple[Verdict, list[str]]:
        from extender.queries.verification.log_verification import LogVerification
        from extender.store.log_evidence import PostgresLogEvidence

        evidence = PostgresLogEvidence(opened.url, log_keys)
        try:
            work = LogVerification(opened.log, evidence, anchor_set.anchors, log_keys)
            while await work.step(STEP_EVENTS):
                pass
        finally:
            await evidence.close()
        return work.verdict, [await _loss(opened, position) for position in work.verdict.losses]

    try:
        verdict, losses = place.ask(question)
    except SchemaOutdated as error:
        # Not its advice: a schema that was renamed or changed looks like an older one, and to migrate it changes evidence.
        fault = (
            str(error)
            .partition(": the schema is not")[0]
            .partition("; run")[0]
            .partition(". Copy")[0]
        )
        console(wrap=False).print(
            f"the log cannot be verified: {fault}\n"
            "    what to do: keep this database, copy it first; if an older version of gang-extender made it, verify it with "
            "that version; if none did, the schema or a table was renamed or changed: restore the newest backup that verifies "
            "with the same anchors"
        )
        raise typer.Exit(1) from error
    except CorruptLog as error:
        console().print(f"the log does not verify: {error}")
        raise typer.Exit(1) from error
    if output is not Output.table:
        print_value(_report(verdict, anchor_set, losses), output)
    else:
        _print(verdict, anchor_set, losses, has_keys=bool(log_keys.key_ids))
    if verdict.findings:
        raise typer.Exit(1)


def _verify_served(source: Ask, output: Output) -> None:
    status = source("/v1/status", ServiceStatus)
    verified = status.verification
    if not status.leader_answers:
        leader = (
            f"its leader {status.leader.name} does not answer"
            if status.leader
            else "no replica leads"
        )
        raise BadInput(
            f"the service verifies its log while a replica leads, and {leader}; {BY_DATABASE}"
        )
    if verified is None:
        raise BadInput(
            f"the leader has not verified the whole log yet, since {status.led_since[:19]}Z; ask again, or {BY_DATABASE}"
        )
    losses = source("/v1/events?type=HistoryTruncated", list[HistoryLine], most=LOSSES_MAX)
    texts = [f"position {line.position}, {line.time}: {line.summary}" for line in losses]
    if output is not Output.table:
        report = VerifyReport(verified.position, SERVED, verified.anchors, None, verified.findings, texts,
                              verified.definitions, verified.privileged_roles)  # fmt: skip
        print_value(report, output)
    else:
        out = console(wrap=False)
        out.print(_result(verified.position, verified.finding_count))
        for finding in verified.findings:
            place = finding.object or f"position {finding.position}"
            weaker = sum(finding.weaker.values())
            more = f". {counted(weaker, 'weaker finding')} with it" if weaker else ""
            out.print(f"{finding.kind} at {place}: {finding.message}{more}")
            out.print(f"    what to do: {finding.advice}")
        if verified.finding_count and not verified.findings:
            hidden = counted(verified.finding_count, "finding")
            out.print(
                f"{hidden}; to see them takes the right to list podgroups in all namespaces (gang-extender-auditor)"
            )
        _print_losses(texts, verified.privileged_roles)
        out.print(
            f"verified by the leader itself at {verified.time[:19]}Z, with {counted(verified.anchors, 'anchor')} that it published; "
            f"to verify it without the service, {BY_DATABASE}"
        )
    if verified.finding_count:
        raise typer.Exit(1)


async def _loss(opened: Store, position: Position) -> str:
    (event,) = await opened.audit.events(EventFilter(after=Position(position - 1), limit=1))
    line = event_line(event)
    return f"position {line.position}, {line.time}: {line.summary}"


def _report(verdict: Verdict, anchor_set: Anchors, losses: list[str]) -> VerifyReport:
    forged = sum(finding.kind == "forged-anchor" for finding in verdict.findings)
    signed = verdict.anchors - verdict.unsigned - forged
    return VerifyReport(
        verdict.position,
        anchor_set.place,
        verdict.anchors,
        signed,
        msgspec.convert(verdict.findings, list[FindingLine], from_attributes=True),
        losses,
        verdict.definitions,
        list(verdict.privileged_roles),
    )


def _result(position: int, finding_count: int) -> str:
    if finding_count:
        return f"the log does not verify, up to position {position}:"
    return f"{counted(position, 'event')} verified, no gap, chain unbroken"


def _print_losses(losses: Iterable[str], roles: Iterable[str]) -> None:
    """Print recorded losses of history, and who can change what was compared."""
    out = console(wrap=False)
    for text in losses:
        out.print(text)
    if names := ", ".join(roles):
        out.print(f"login roles that can change what was compared: {names}")


def _print(verdict: Verdict, anchor_set: Anchors, losses: list[str], *, has_keys: bool) -> None:
    out = console(wrap=False)
    out.print(_result(verdict.position, len(verdict.findings)))
    for finding in verdict.findings:
        out.print(f"{finding.kind} at {finding.place}: {finding.full_message}")
        out.print(f"    what to do: {finding.advice}")
    if not verdict.findings:
        if anchor_set.anchors:
            out.print(f"{counted(verdict.anchors, 'anchor')} of {anchor_set.place} compared")
        if verdict.definitions:
            out.print(f"{counted(verdict.definitions, 'definition')} of the schema compared")
    if not verdict.definitions:
        out.print(
            "views, functions, triggers and rights were not compared: the schema is of a version that this one does not know; "
            "run verify of the version that migrated it"
        )
    if not anchor_set.anchors:
        out.print(
            "no anchors were given: a log that was rewritten as a whole or cut off is not found; see --anchors"
        )
    elif not has_keys:
        out.print("the signatures of the anchors were not checked: there is no key; see --keys")
    elif verdict.unsigned:
        out.print(
            f"{counted(verdict.unsigned, 'anchor')} without a signature; see gang-extender keys"
        )
    _print_losses(losses, verdict.privileged_roles)


def keys(
    file: Annotated[Path, typer.Argument(help="File for the private key; FILE.pub gets the public one.")],
    rotate: Annotated[
        bool,
        typer.Option("--rotate", help="Write a new key in front of those of the file: it signs from the next start on, and the others are still accepted."),
    ] = False,
) -> None:  # fmt: skip
    """Make the key that signs anchors (Ed25519) and authenticates snapshots, or replace it.

    Give the file to the service as --anchor-key-file, and keep it away from the database. FILE.pub is enough for verify.
    """
    before = _read_key(file)
    if before and not rotate:
        raise BadInput(
            f"{file} exists; --rotate adds a new key and keeps the old one for what it signed"
        )
    if rotate and not before:
        raise BadInput(
            f"--rotate: {file} has no key yet; leave the option out to make the first one"
        )
    if before:
        parse_keys(before, str(file))
    private, _ = make_key()
    text = private + before
    _write(file, text, 0o600)
    public = file.with_name(f"{file.name}.pub")
    _write(public, public_blocks(text, str(file)), 0o644)
    ids = parse_keys(text, str(file)).key_ids
    out = console(wrap=False)
    out.print(f"wrote {file} (signs with key {ids[0]}) and {public}")
    for old in ids[1:]:
        out.print(f"key {old} is still accepted")
    out.print(f"gang-extender serve --anchor-key-file {file}")
    out.print(
        "kubectl -n gang-extender create secret generic gang-extender-anchor-key "
        f"--from-file=anchor.key={file} --dry-run=client -o yaml | kubectl apply -f -"
    )


def _read_key(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from error


def _write(file: Path, text: bytes, mode: int) -> None:
    """Write a file with a mode; the old content is replaced at once."""
    new = file.with_name(f"{file.name}.new")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text)
        new.replace(file)
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}") from error
