"""Logging as JSON lines or as text, and the metrics. Metrics that kube-scheduler has too keep their names."""

from __future__ import annotations

import functools
import logging
import re
import sys
import time
from collections import Counter as Counts
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TextIO, get_args, get_type_hints

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from extender.core.log import events as ev
from extender.core.log.reservation_state import NOT_IN_VAIN, PreemptorRun
from extender.core.log.tampering import TamperKind
from extender.core.model.ids import GangUid, PlanId
from extender.core.planner.plan_types import Plan, Verdict

if TYPE_CHECKING:
    from extender.core.planner.preempt.victim_search import PreemptionVerdict

# They double the series; Prometheus sees a restart by the value itself.
disable_created_metrics()  # type: ignore[no-untyped-call]

_PLAIN = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

SEARCHING_MAX = 100  # namespaces with a series of their own
STAGES = ("complete", "admitted", "scheduled")  # of a gang, see `core/log/gang_phase`
# Values of labels; no name of Kubernetes has parentheses.
NO_CLASS = "(none)"  # without a priority class
OTHERS = "(other)"  # all beyond those that have series of their own
HOUR_US: Final = 3_600_000_000
PRIORITY_CLASSES_MAX: Final = 20  # priority classes with series of their own
# types of notifications (see `control/monitors/notifier`), and what became of them
NOTIFIED = ("preempted", "spared", "never-fits", "waiting")
DELIVERIES = ("delivered", "refused", "failed")
# kinds of `DriftDetected` beside those of tampering; see `core/reconcile/drift`
DRIFT_KINDS = (
    "bound-elsewhere", "bound-outside-admission", "bound-by-unknown-plan", "not-bound", "nomination-altered", "memory",
)  # fmt: skip


# parts of the service that go on after a defect with one object, see `runtime/periodic`
FAULT_PARTS = (
    "admission", "bind barriers", "cluster", "control loop", "ends of members", "evictions", "explanations", "finalizers", "gate removal",
    "group writes", "log", "moves", "nominations", "periodic task", "pod explanations", "reconciliation", "searches", "service", "stale nominations",
    "status reports", "trees", "workload events",
)  # fmt: skip


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, logger, message, then the extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line of JSON."""
        line: dict[str, object] = {
            "time": f"{_date_and_time(int(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {k: v for k, v in record.__dict__.items() if k not in _PLAIN}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextLines(logging.Formatter):
    """A line per record for people: time, level, message, the extra fields as NAME=VALUE; an exception below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text."""
        time_of_day = f"{_date_and_time(int(record.created))[11:]}.{int(record.msecs):03d}Z"
        extra = {k: v for k, v in record.__dict__.items() if k not in _PLAIN}
        fields = "".join(f"  {name}={_field(value)}" for name, value in extra.items())
        line = f"{time_of_day} {record.levelname:<7} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _field(value: object) -> str:
    """Return the value of a field: a text without spaces as it is, anything else as JSON, so that it stays on one line."""
    if isinstance(value, str) and value and not re.search(r"[\s\x00-\x1f\x7f-\x9f]", value):
        return value
    return msgspec.json.encode(value, enc_hook=str).decode()


@functools.lru_cache(maxsize=8)  # many lines are of one second
def _date_and_time(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def set_up_logging(level: str, stream: TextIO | None = None, form: str = "") -> None:
    """Send all log records to one stream.

    Args:
        stream: Where to; None: stderr.
        form: Of the lines: `json` or `text`; empty: text if the stream is a terminal, else JSON.
    """
    to = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(to)
    text = form == "text" or (not form and to.isatty())
    handler.setFormatter(TextLines() if text else JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("hpack").setLevel(logging.INFO)  # a line for each header, at DEBUG
    # The lines do not have these; to collect them is a part of the cost of a record ("Optimization" in the HOWTO of logging).
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 -- as documented there


LINE_EVERY_MS: Final = 60_000
CAUSES_MAX: Final = 100  # whose lines are counted apart; further ones share a count


def _monotonic_ms() -> int:
    return int(time.monotonic() * 1000)


class LimitedLines:
    """Warnings that others can cause as often as they like: one a minute for each cause, with the number of those left out."""

    def __init__(
        self, log: logging.Logger, message: str, now_ms: Callable[[], int] = _monotonic_ms
    ) -> None:
        self._log = log
        self._message = message
        self._now_ms = now_ms
        self._logged_ms: dict[str, int] = {}
        self._left_out: Counts[str] = Counts()

    def warn(self, cause: str, /, **extra: object) -> None:
        """Log a line, or count it if there was one with the same cause less than a minute ago."""
        if cause not in self._logged_ms and len(self._logged_ms) >= CAUSES_MAX:
            cause = "others"
        now_ms, last_ms = self._now_ms(), self._logged_ms.get(cause)
        if last_ms is not None and now_ms - last_ms < LINE_EVERY_MS:
            self._left_out[cause] += 1
            return
        self._logged_ms[cause] = now_ms
        left_out = self._left_out.pop(cause, 0)
        self._log.warning(self._message, extra={**extra, "more_since_last_line": left_out})


class Series:
    """What `Metrics` declares about a metric: its description, the names of its labels, and the buckets of a histogram."""

    def __init__(self, about: str, *labels: str, buckets: Sequence[float] = ()) -> None:
        self.about = about
        self.labels = labels
        self.more = {"buckets": buckets} if buckets else {}


class Metrics:
    """All metrics, in their own registry; the name of each begins with `gang_extender_`."""

    # One line per metric, in the order of /metrics.
    # fmt: off
    gang_wait_seconds: Annotated[Histogram, Series("Seconds from the creation of a gang, or since its workload was resumed, until it was complete, admitted and scheduled for the first time, by stage and priority class; complete is recorded at the admission; beyond 20 classes: (other).", "stage", "priority_class", buckets=(1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86_400, 3 * 86_400, 7 * 86_400))]
    oldest_waiting_gang_seconds: Annotated[Gauge, Series("Seconds that the gang has waited which waits longest, by its state; 0: none waits. Of the leader only.", "state")]
    gangs_waiting: Annotated[Gauge, Series("Gangs whose minimum is not bound, by namespace and state; beyond 100 namespaces: (other). Of the leader only.", "namespace", "state")]
    gangs_waiting_requests: Annotated[Gauge, Series("What pods without a node of waiting gangs request, by namespace, state and resource (CPU in cores); beyond 100 namespaces: (other). Of the leader only.", "namespace", "state", "resource")]
    capacity: Annotated[Gauge, Series("What the capacity of all nodes is used for, by resource (CPU in cores) and use. bound: members of gangs; others: other pods; reserved: for members that are not bound yet; held: for replacements, preemptors and gangs that wait for long; unusable: free on nodes that take no pods. Of the leader only, measured once a minute.", "resource", "use")]
    database_size_bytes: Annotated[Gauge, Series("Size of the database with the log.")]
    database_disk_free_bytes: Annotated[Gauge, Series("Free bytes of the disk of the embedded database, by its folder.", "folder")]
    notifications: Annotated[Counter, Series("Requests to the receiver of notifications, by type and result. refused: it cannot use this one, which is not sent again; failed: it is sent again.", "type", "result")]
    notification_delay_seconds: Annotated[Gauge, Series("Age of the oldest event of which the receiver of notifications has not been notified; 0: there is none.")]
    control_loop_failures_in_a_row: Annotated[Gauge, Series("How often the pass of the control loop, or a step of it for all gangs, has failed since its last success; the largest number.")]
    manifest_files_ignored: Annotated[Gauge, Series("1 for each file of --cluster that is not valid; its last valid content stays in use.", "file")]
    reservations_released: Annotated[Counter, Series("Releases of the reservations of a gang, by reason; bound: its pods run, and are counted as such from then on.", "reason")]
    preemptions_ended: Annotated[Counter, Series("Preemptions that ended, by result. completed: the preemptor runs; cancelled: before a pod was evicted; cancelled-after-evictions: pods were evicted, but not for this preemptor.", "result")]
    preemptions_in_vain: Annotated[Counter, Series("Preemptions with evicted victims whose preemptor never ran, or for less than a minute (of the replica that led all the time).", "ran")]
    new_gangs_limited: Annotated[Gauge, Series("New gangs that wait because their namespace has more than max_new_gangs_per_minute.")]
    full_collection_seconds: Annotated[Histogram, Series("Seconds for which the garbage collector stopped the process to look at all objects.", buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1))]
    extender_requests: Annotated[Counter, Series("Requests of kube-scheduler to this replica, by verb and outcome.", "verb", "outcome")]
    extender_request_duration_seconds: Annotated[Histogram, Series("Seconds from a request of kube-scheduler to the response; bind: with the wait at the bind barrier.", "verb", buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1, 5, 20, 60))]
    http_requests_refused: Annotated[Counter, Series("Requests and connections that were refused or closed before a handler was called, by reason; see docs/limits.md.", "reason")]
    http_access: Annotated[Counter, Series("Requests to /v1 and /metrics whose rights were checked, by outcome: allowed, unauthenticated (401), forbidden (403), unknown (503), ended (a stream whose right was taken away).", "outcome")]
    access_reviews: Annotated[Counter, Series("Reviews of a token or a right that this replica asked kube-apiserver for, by kind and answer; other requests are answered from earlier reviews.", "kind", "answer")]
    http_connections: Annotated[Gauge, Series("Open connections of all listeners.")]
    http_body_bytes_in_flight: Annotated[Gauge, Series("Bytes of the bodies of all open requests, and of answers that their callers have not taken.")]
    tls_handshakes_failed: Annotated[Counter, Series("Connections that failed in the TLS handshake, by cause: no-certificate, unknown-ca, ended, refused-by-caller, plain-http, other.", "cause")]
    tls_reloads: Annotated[Counter, Series("How often changed files of certificates were read again, by files (server, client) and result (loaded, failed).", "files", "result")]
    tls_certificate_expires_in_seconds: Annotated[Gauge, Series("Seconds until a certificate in use ends, by certificate: server, client, client-ca (the last of them).", "certificate")]
    podgroup_schedule_attempts: Annotated[Counter, Series("Answers of the planner about whole trees, by result.", "result")]
    podgroup_scheduling_algorithm_duration_seconds: Annotated[Histogram, Series("Seconds that the planner took for one tree.")]
    tree_search_budget_exhausted: Annotated[Counter, Series("Plans that used up their search budget.")]
    search_seconds: Annotated[Counter, Series("Seconds of the planner process for long searches and explanations, by namespace of the tree; beyond 100 namespaces: (other).", "namespace")]
    podgroup_preemption_attempts: Annotated[Counter, Series("Searches for victims, by result.", "result")]
    podgroup_preemption_attempt_duration_seconds: Annotated[Histogram, Series("Seconds that one search for victims took.")]
    podgroup_preemption_victims: Annotated[Histogram, Series("Number of pods that one preemption evicts.", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))]
    preemptions_pending: Annotated[Gauge, Series("Preemptions whose victims are not all gone, or whose preemptor does not run yet.")]
    preemption_victims_stuck: Annotated[Gauge, Series("Victims that still exist 10 s after the end of their grace period, or whose deletion the API server refuses.")]
    moves_left: Annotated[Gauge, Series("Moves of running pods (`make-room --apply`, `drain --apply`) that are under way and not made yet.")]
    moves_ended: Annotated[Counter, Series("Plans of moves that ended, by reason; all but *completed* left moves unmade.", "reason")]
    moves_in_vain: Annotated[Counter, Series("Plans whose moves were made in vain. reason=not-bound: the gang for which pods were moved did not get its place; moved-twice: a gang was moved twice within an hour.", "reason")]
    clock_offset_seconds: Annotated[Gauge, Series("Seconds that the wall clock of this replica is ahead of the clock of the database; recorded times follow the latter.")]
    clock_steps: Annotated[Counter, Series("Steps of more than 2 s of the wall clock of this replica (service) or of the clock of the database, as this replica saw them.", "clock")]
    recorded_time_ahead_seconds: Annotated[Gauge, Series("Seconds that the newest event of the log is ahead of the clock of the database; above 0 recorded times stand still.")]
    events_appended: Annotated[Counter, Series("Events that this replica appended to the log, by type.", "type")]
    pending_entities: Annotated[Gauge, Series("Trees that wait for capacity.", "type")]
    reservations_held: Annotated[Gauge, Series("Reservations that are not bound yet.")]
    log_head_position: Annotated[Gauge, Series("Position of the last event in the committed state of this replica.")]
    periodic_task_last_success_timestamp_seconds: Annotated[Gauge, Series("Unix time at which a periodic task last did its work without an error, by task.", "task")]
    event_loop_delay_seconds: Annotated[Histogram, Series("How late a task of the event loop ran that is due every 0.2 s.", buckets=(0.005, 0.01, 0.025, 0.1, 0.5, 1, 2, 5, 10, 15, 30))]
    lease_renewals_while_busy: Annotated[Counter, Series("Renewals of the lease by the thread that renews it while the event loop is busy.")]
    leader: Annotated[Gauge, Series("1 while this replica is the leader and may append to the log, else 0.")]
    drift_detected: Annotated[Counter, Series("Differences found between the cluster and the log, or between memory and the log, by kind.", "kind")]
    apiserver_dropped_fields: Annotated[Gauge, Series("Number of fields that kube-apiserver drops when an object is created, by object.", "object")]
    native_group_scheduling: Annotated[Gauge, Series("Whether kube-scheduler schedules groups by itself: 1 yes, 0 no, -1 not known.")]
    history_truncated: Annotated[Counter, Series("How often the log was found to lack committed events, because the database is an older copy.")]
    log_verified_position: Annotated[Gauge, Series("Position up to which the running verification of the log has come; it begins at 0 again and again.")]
    log_verification_last_success_timestamp_seconds: Annotated[Gauge, Series("When the whole log was verified last, as Unix time.")]
    log_findings: Annotated[Gauge, Series("What the last verification of the whole log found, by kind; see gang-extender verify.", "kind")]
    reserved_capacity_used_by_others: Annotated[Counter, Series("Other pods that use the reserved capacity of a gang. via=unaware: their scheduler does not call this service; higher-priority: their priority is higher; pinned: they may run on that node only.", "via")]
    readmission_loops: Annotated[Counter, Series("Trees that were released and admitted again although nothing changed: a defect.")]
    object_faults: Annotated[Counter, Series("Exceptions in the work for one object, by part of the service: a defect. The object is tried again after a pause, and the others go on.", "part")]
    k8s_events_failed: Annotated[Counter, Series("Kubernetes Events that could not be written.")]
    k8s_events_dropped: Annotated[Counter, Series("Kubernetes Events that were not written because there were too many.")]
    objects_unreadable: Annotated[Counter, Series("Objects of the API server that could not be decoded and were left out, by resource.", "resource")]
    informer_lists: Annotated[Counter, Series("Complete lists of a resource from kube-apiserver, by resource; more than one means that a watch was lost.", "resource")]
    # fmt: on

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._priority_classes: set[str] = set()
        # of the gangs whose preemption is not decided yet, or ended less than a minute ago
        self._preemptor_runs: dict[GangUid, list[PreemptorRun]] = {}
        # gangs for which pods were moved, from the plan on: its id, and whether its moves have ended
        self._moves_for: dict[GangUid, tuple[PlanId, bool]] = {}
        self._moved: dict[GangUid, tuple[PlanId, int]] = {}  # by which plan last, and when
        self._searching: set[str] = set()
        for name, declared in get_type_hints(Metrics, include_extras=True).items():
            kind, series = get_args(declared)
            metric = kind(
                f"gang_extender_{name}",
                series.about,
                series.labels,
                registry=self.registry,
                **series.more,
            )
            setattr(self, name, metric)
        self.native_group_scheduling.set(-1)
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        """Make the series of rare events, so that `increase()` of Prometheus sees the first of them too."""
        for event in get_args(ev.AnyEventData):
            self.events_appended.labels(event.__name__)
        rare: tuple[tuple[Counter, tuple[str, ...]], ...] = (
            (self.reservations_released, get_args(ev.ReleaseReason)),
            (self.preemptions_ended, ("completed", "cancelled", "cancelled-after-evictions")),
            (self.preemptions_in_vain, ("never", "less-than-a-minute")),
            (self.moves_ended, get_args(ev.MovesEndReason)),
            (self.moves_in_vain, ("not-bound", "moved-twice")),
            (self.drift_detected, (*DRIFT_KINDS, *get_args(TamperKind))),
            (self.reserved_capacity_used_by_others, get_args(ev.CapacityUseReason)),
            (self.clock_steps, get_args(ev.SteppedClock)),
            (self.object_faults, FAULT_PARTS),
        )
        for counter, values in rare:
            for value in values:
                counter.labels(value)
        for files in ("server", "client"):
            self.tls_reloads.labels(files, "failed")
        for kind in NOTIFIED:
            for result in DELIVERIES:
                self.notifications.labels(kind, result)
        for stage in STAGES:
            self.gang_wait_seconds.labels(stage, NO_CLASS)

    def planned(self, verdict: Verdict, took_ms: int) -> None:
        """Count an answer of the planner."""
        result = "scheduled" if isinstance(verdict, Plan) else "unschedulable"
        self.podgroup_schedule_attempts.labels(result).inc()
        self.podgroup_scheduling_algorithm_duration_seconds.observe(took_ms / 1000)
        if not verdict.search.exhausted:
            self.tree_search_budget_exhausted.inc()

    def searched(self, namespace: str, took_ms: int) -> None:
        """Count what the planner process spent for trees of a namespace."""
        if len(self._searching) < SEARCHING_MAX:
            self._searching.add(namespace)
        label = namespace if namespace in self._searching else OTHERS
        self.search_seconds.labels(label).inc(took_ms / 1000)

    def gang_waited(self, stage: str, priority_class: str, seconds: float) -> None:
        """Count how long a gang took from its creation to a stage; `priority_class` may be empty."""
        name = priority_class or NO_CLASS
        if len(self._priority_classes) < PRIORITY_CLASSES_MAX:
            self._priority_classes.add(name)
        label = name if name in self._priority_classes else OTHERS
        self.gang_wait_seconds.labels(stage, label).observe(max(seconds, 0))

    def appended(self, event: ev.RecordedEvent) -> None:
        """Count an event that this replica appended to the log."""
        data = event.data
        self._count_in_vain(event)
        self._count_moves_in_vain(event)
        self.events_appended.labels(type(data).__name__).inc()
        match data:
            case ev.DriftDetected():
                self.drift_detected.labels(data.kind).inc()
            case ev.HistoryTruncated():
                self.history_truncated.inc()
            case ev.ReservationReleased():
                self.reservations_released.labels(data.reason).inc()
            case ev.MovesEnded():
                self.moves_ended.labels(data.reason).inc()
            case ev.PreemptionCompleted():
                self.preemptions_ended.labels("completed").inc()
            case ev.PreemptionCancelled():
                begun = data.evicted or data.units_in_progress
                result = "cancelled-after-evictions" if begun else "cancelled"
                self.preemptions_ended.labels(result).inc()
            case _:
                pass

    def _count_in_vain(self, event: ev.RecordedEvent) -> None:
        """Count evictions after which the preemptor never ran, or ran for less than a minute."""
        uid, data = event.gang_uid, event.data
        runs = self._preemptor_runs.get(uid, [])
        match data:
            case ev.PreemptionPlanned() if data.kind != "Pod":
                self._preemptor_runs = {
                    gang: left
                    for gang, of_gang in self._preemptor_runs.items()
                    if (left := [run for run in of_gang if not run.lasts(event.at_us)])
                }
                before = [run for run in self._preemptor_runs.get(uid, ()) if run.completed]
                self._preemptor_runs[uid] = [*before, PreemptorRun(data.preemption)]
            case ev.PreemptionCancelled():
                runs[:] = [run for run in runs if run.preemption != data.preemption]
                if data.evicted and data.reason not in NOT_IN_VAIN:
                    self.preemptions_in_vain.labels("never").inc()
            case ev.PreemptionCompleted() if not data.evicted:
                runs[:] = [run for run in runs if run.preemption != data.preemption]
            case _:
                for run in tuple(runs):
                    run.follow(event)
                    if run.was_brief:
                        runs.remove(run)
                        self.preemptions_in_vain.labels("less-than-a-minute").inc()

    def _count_moves_in_vain(self, event: ev.RecordedEvent) -> None:
        """Count moves after which the gang that waited got no place, and gangs that are moved again within the hour."""
        data, gang = event.data, event.gang_uid
        match data:
            case ev.MovesPlanned() if data.for_gang:
                self._moves_missed(data.for_uid)
                self._moves_for[data.for_uid] = data.plan, False
            case ev.MovesEnded():
                uid = next(
                    (u for u, entry in self._moves_for.items() if entry[0] == data.plan), None
                )
                if uid is None:
                    return
                self._moves_for[uid] = data.plan, data.made > 0
                if data.reason != "completed":
                    self._moves_missed(uid)
            case ev.GangAdmitted():
                self._moves_for.pop(gang, None)
            case ev.GangUnschedulable() | ev.GangInvalid() | ev.GangRemoved() if (
                gang in self._moves_for
            ):
                if self._moves_for[gang][1]:
                    self._moves_missed(gang)
            case ev.MoveCompleted():
                plan, at_us = self._moved.get(gang, (data.plan, 0))
                if plan != data.plan and event.at_us - at_us < HOUR_US:
                    self.moves_in_vain.labels("moved-twice").inc()
                self._moved = {
                    uid: row for uid, row in self._moved.items() if event.at_us - row[1] < HOUR_US
                } | {gang: (data.plan, event.at_us)}
            case _:
                pass

    def _moves_missed(self, uid: GangUid) -> None:
        """Forget the moves for a gang that has no place; count them if they have ended, and some were made."""
        if self._moves_for.pop(uid, (None, False))[1]:
            self.moves_in_vain.labels("not-bound").inc()

    def preemption_answered(self, answer: PreemptionVerdict, took_ms: int) -> None:
        """Count a search for victims."""
        from extender.core.planner.preempt.victim_search import NoPreemption  # imports numpy

        self.podgroup_preemption_attempt_duration_seconds.observe(took_ms / 1000)
        if isinstance(answer, NoPreemption):
            self.podgroup_preemption_attempts.labels(answer.cause).inc()
        else:
            self.podgroup_preemption_attempts.labels("victims").inc()
            self.podgroup_preemption_victims.observe(sum(len(unit.pods) for unit in answer.victims))


METRICS = Metrics()


def log_fields(values: msgspec.Struct) -> dict[str, object]:
    """Return the fields of `values` as `extra` of a log record; `message`, which a record has already, as `detail`."""
    fields = msgspec.structs.asdict(values)
    if "message" in fields:
        fields["detail"] = fields.pop("message")
    return fields
