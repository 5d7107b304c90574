"""Logging as JSON lines or as text, and the metrics. Metrics that kube-scheduler has too keep their names."""

from __future__ import annotations

import functools
import logging
import re
import sys
import time
from collections import Counter as Counts
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TextIO, get_args

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

from extender.core.log.events import (
    AnyEventData,
    CapacityUseReason,
    DriftDetected,
    EventData,
    HistoryTruncated,
    PreemptionCancelled,
    PreemptionCompleted,
    ReleaseReason,
    ReservationReleased,
    SteppedClock,
)
from extender.core.log.tampering import TamperKind
from extender.core.planner.plan_types import Plan, Verdict

if TYPE_CHECKING:
    from extender.core.planner.preempt.victim_search import PreemptionVerdict

# They double the series; Prometheus sees a restart by the value itself.
disable_created_metrics()  # type: ignore[no-untyped-call]

_PLAIN = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

SEARCHING_MAX = 100  # namespaces with a series of their own
STAGES = ("complete", "admitted", "scheduled")  # of a gang, see `core/log/waiting_gangs`
# Values of labels; no name of Kubernetes has parentheses.
NO_CLASS = "(none)"  # without a priority class
OTHERS = "(other)"  # all beyond those that have series of their own
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
    "group writes", "log", "nominations", "periodic task", "pod explanations", "reconciliation", "searches", "service", "stale nominations",
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
        level: Least severe level.
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
    """Warnings that others can cause as often as they like: one a minute for each cause, with the number of those left out.

    Args:
        log: Where they go.
        message: Of all of them.
        now_ms: Monotonic time in milliseconds.
    """

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


class Metrics:
    """All metrics, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "gang_extender"
        self._add_others(prefix)
        self.extender_requests = Counter(
            f"{prefix}_extender_requests",
            "Requests of kube-scheduler to this replica, by verb and outcome.",
            ["verb", "outcome"],
            registry=self.registry,
        )
        self.extender_request_duration_seconds = Histogram(
            f"{prefix}_extender_request_duration_seconds",
            "Seconds from a request of kube-scheduler to the response; bind: with the wait at the bind barrier.",
            ["verb"],
            buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1, 5, 20, 60),
            registry=self.registry,
        )
        self.http_requests_refused = Counter(
            f"{prefix}_http_requests_refused",
            "Requests and connections that were refused or closed before a handler was called, by reason; see docs/limits.md.",
            ["reason"],
            registry=self.registry,
        )
        self.http_access = Counter(
            f"{prefix}_http_access",
            "Requests to /v1 and /metrics whose rights were checked, by outcome: allowed, unauthenticated (401), forbidden (403), unknown (503), ended (a stream whose right was taken away).",
            ["outcome"],
            registry=self.registry,
        )
        self.access_reviews = Counter(
            f"{prefix}_access_reviews",
            "Reviews of a token or a right that this replica asked kube-apiserver for, by kind and answer; other requests are answered from earlier reviews.",
            ["kind", "answer"],
            registry=self.registry,
        )
        self.http_connections = Gauge(
            f"{prefix}_http_connections",
            "Open connections of all listeners.",
            registry=self.registry,
        )
        self.http_body_bytes_in_flight = Gauge(
            f"{prefix}_http_body_bytes_in_flight",
            "Bytes of the bodies of all open requests, and of answers that their callers have not taken.",
            registry=self.registry,
        )
        self.tls_handshakes_failed = Counter(
            f"{prefix}_tls_handshakes_failed",
            "Connections that failed in the TLS handshake, by cause: no-certificate, unknown-ca, ended, refused-by-caller, plain-http, other.",
            ["cause"],
            registry=self.registry,
        )
        self.tls_reloads = Counter(
            f"{prefix}_tls_reloads",
            "How often changed files of certificates were read again, by files (server, client) and result (loaded, failed).",
            ["files", "result"],
            registry=self.registry,
        )
        self.tls_certificate_expires_in_seconds = Gauge(
            f"{prefix}_tls_certificate_expires_in_seconds",
            "Seconds until a certificate in use ends, by certificate: server, client, client-ca (the last of them).",
            ["certificate"],
            registry=self.registry,
        )
        self.podgroup_schedule_attempts = Counter(
            f"{prefix}_podgroup_schedule_attempts",
            "Answers of the planner about whole trees, by result.",
            ["result"],
            registry=self.registry,
        )
        self.podgroup_scheduling_algorithm_duration_seconds = Histogram(
            f"{prefix}_podgroup_scheduling_algorithm_duration_seconds",
            "Seconds that the planner took for one tree.",
            registry=self.registry,
        )
        self.tree_search_budget_exhausted = Counter(
            f"{prefix}_tree_search_budget_exhausted",
            "Plans that used up their search budget.",
            registry=self.registry,
        )
        self.search_seconds = Counter(
            f"{prefix}_search_seconds",
            "Seconds of the planner process for long searches and explanations, by namespace of the tree; beyond 100 namespaces: (other).",
            ["namespace"],
            registry=self.registry,
        )
        self._searching: set[str] = set()
        self.podgroup_preemption_attempts = Counter(
            f"{prefix}_podgroup_preemption_attempts",
            "Searches for victims, by result.",
            ["result"],
            registry=self.registry,
        )
        self.podgroup_preemption_attempt_duration_seconds = Histogram(
            f"{prefix}_podgroup_preemption_attempt_duration_seconds",
            "Seconds that one search for victims took.",
            registry=self.registry,
        )
        self.podgroup_preemption_victims = Histogram(
            f"{prefix}_podgroup_preemption_victims",
            "Number of pods that one preemption evicts.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
            registry=self.registry,
        )
        self.preemptions_pending = Gauge(
            f"{prefix}_preemptions_pending",
            "Preemptions whose victims are not all gone, or whose preemptor does not run yet.",
            registry=self.registry,
        )
        self.preemption_victims_stuck = Gauge(
            f"{prefix}_preemption_victims_stuck",
            "Victims that still exist 10 s after the end of their grace period, or whose deletion the API server refuses.",
            registry=self.registry,
        )
        self.clock_offset_seconds = Gauge(
            f"{prefix}_clock_offset_seconds",
            "Seconds that the wall clock of this replica is ahead of the clock of the database; recorded times follow the latter.",
            registry=self.registry,
        )
        self.clock_steps = Counter(
            f"{prefix}_clock_steps",
            "Steps of more than 2 s of the wall clock of this replica (service) or of the clock of the database, as this replica saw them.",
            ["clock"],
            registry=self.registry,
        )
        self.recorded_time_ahead_seconds = Gauge(
            f"{prefix}_recorded_time_ahead_seconds",
            "Seconds that the newest event of the log is ahead of the clock of the database; above 0 recorded times stand still.",
            registry=self.registry,
        )
        self.events_appended = Counter(
            f"{prefix}_events_appended",
            "Events that this replica appended to the log, by type.",
            ["type"],
            registry=self.registry,
        )
        self.pending_entities = Gauge(
            f"{prefix}_pending_entities",
            "Trees that wait for capacity.",
            ["type"],
            registry=self.registry,
        )
        self.reservations_held = Gauge(
            f"{prefix}_reservations_held",
            "Reservations that are not bound yet.",
            registry=self.registry,
        )
        self.log_head_position = Gauge(
            f"{prefix}_log_head_position",
            "Position of the last event in the committed state of this replica.",
            registry=self.registry,
        )
        self.periodic_task_last_success_timestamp_seconds = Gauge(
            f"{prefix}_periodic_task_last_success_timestamp_seconds",
            "Unix time at which a periodic task last did its work without an error, by task.",
            ["task"],
            registry=self.registry,
        )
        self.event_loop_delay_seconds = Histogram(
            f"{prefix}_event_loop_delay_seconds",
            "How late a task of the event loop ran that is due every 0.2 s.",
            buckets=(0.005, 0.01, 0.025, 0.1, 0.5, 1, 2, 5, 10, 15, 30),
            registry=self.registry,
        )
        self.lease_renewals_while_busy = Counter(
            f"{prefix}_lease_renewals_while_busy",
            "Renewals of the lease by the thread that renews it while the event loop is busy.",
            registry=self.registry,
        )
        self.leader = Gauge(
            f"{prefix}_leader",
            "1 while this replica is the leader and may append to the log, else 0.",
            registry=self.registry,
        )
        self.drift_detected = Counter(
            f"{prefix}_drift_detected",
            "Differences found between the cluster and the log, or between memory and the log, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self.apiserver_dropped_fields = Gauge(
            f"{prefix}_apiserver_dropped_fields",
            "Number of fields that kube-apiserver drops when an object is created, by object.",
            ["object"],
            registry=self.registry,
        )
        self.native_group_scheduling = Gauge(
            f"{prefix}_native_group_scheduling",
            "Whether kube-scheduler schedules groups by itself: 1 yes, 0 no, -1 not known.",
            registry=self.registry,
        )
        self.native_group_scheduling.set(-1)
        self.history_truncated = Counter(
            f"{prefix}_history_truncated",
            "How often the log was found to lack committed events, because the database is an older copy.",
            registry=self.registry,
        )
        self.log_verified_position = Gauge(
            f"{prefix}_log_verified_position",
            "Position up to which the running verification of the log has come; it begins at 0 again and again.",
            registry=self.registry,
        )
        self.log_verification_last_success_timestamp_seconds = Gauge(
            f"{prefix}_log_verification_last_success_timestamp_seconds",
            "When the whole log was verified last, as Unix time.",
            registry=self.registry,
        )
        self.log_findings = Gauge(
            f"{prefix}_log_findings",
            "What the last verification of the whole log found, by kind; see gang-extender verify.",
            ["kind"],
            registry=self.registry,
        )
        self.reserved_capacity_used_by_others = Counter(
            f"{prefix}_reserved_capacity_used_by_others",
            "Other pods that use the reserved capacity of a gang. via=unaware: their scheduler does not call this service; higher-priority: their priority is higher; pinned: they may run on that node only.",
            ["via"],
            registry=self.registry,
        )
        self.readmission_loops = Counter(
            f"{prefix}_readmission_loops",
            "Trees that were released and admitted again although nothing changed: a defect.",
            registry=self.registry,
        )
        self.object_faults = Counter(
            f"{prefix}_object_faults",
            "Exceptions in the work for one object, by part of the service: a defect. The object is tried again after a pause, and the others go on.",
            ["part"],
            registry=self.registry,
        )
        self.k8s_events_failed = Counter(
            f"{prefix}_k8s_events_failed",
            "Kubernetes Events that could not be written.",
            registry=self.registry,
        )
        self.k8s_events_dropped = Counter(
            f"{prefix}_k8s_events_dropped",
            "Kubernetes Events that were not written because there were too many.",
            registry=self.registry,
        )
        self.objects_unreadable = Counter(
            f"{prefix}_objects_unreadable",
            "Objects of the API server that could not be decoded and were left out, by resource.",
            ["resource"],
            registry=self.registry,
        )
        self.informer_lists = Counter(
            f"{prefix}_informer_lists",
            "Complete lists of a resource from kube-apiserver, by resource; more than one means that a watch was lost.",
            ["resource"],
            registry=self.registry,
        )

        self._start_at_zero()

    def _start_at_zero(self) -> None:
        """Make the series of rare events, so that `increase()` of Prometheus sees the first of them too."""
        for event in get_args(AnyEventData):
            self.events_appended.labels(event.__name__)
        for reason in get_args(ReleaseReason):
            self.reservations_released.labels(reason)
        for result in ("completed", "cancelled", "cancelled-after-evictions"):
            self.preemptions_ended.labels(result)
        for kind in (*DRIFT_KINDS, *get_args(TamperKind)):
            self.drift_detected.labels(kind)
        for reason in get_args(CapacityUseReason):
            self.reserved_capacity_used_by_others.labels(reason)
        for clock in get_args(SteppedClock):
            self.clock_steps.labels(clock)
        for part in FAULT_PARTS:
            self.object_faults.labels(part)
        for files in ("server", "client"):
            self.tls_reloads.labels(files, "failed")
        for kind in NOTIFIED:
            for result in DELIVERIES:
                self.notifications.labels(kind, result)
        for stage in STAGES:
            self.gang_wait_seconds.labels(stage, NO_CLASS)

    def _add_waits(self, prefix: str) -> None:
        self.gang_wait_seconds = Histogram(
            f"{prefix}_gang_wait_seconds",
            "Seconds from the creation of a gang, or since its workload was resumed, until it was complete, admitted and scheduled for the first time, by stage and priority class; complete is recorded at the admission; beyond 20 classes: (other).",
            ["stage", "priority_class"],
            buckets=(1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86_400, 3 * 86_400, 7 * 86_400),
            registry=self.registry,
        )  # fmt: skip
        self._priority_classes: set[str] = set()
        self.oldest_waiting_gang_seconds = Gauge(
            f"{prefix}_oldest_waiting_gang_seconds",
            "Seconds that the gang has waited which waits longest, by its state; 0: none waits. Of the leader only.",
            ["state"],
            registry=self.registry,
        )
        self.gangs_waiting = Gauge(
            f"{prefix}_gangs_waiting",
            "Gangs whose minimum is not bound, by namespace and state; beyond 100 namespaces: (other). Of the leader only.",
            ["namespace", "state"],
            registry=self.registry,
        )
        self.gangs_waiting_requests = Gauge(
            f"{prefix}_gangs_waiting_requests",
            "What pods without a node of waiting gangs request, by namespace, state and resource (CPU in cores); beyond 100 namespaces: (other). Of the leader only.",
            ["namespace", "state", "resource"],
            registry=self.registry,
        )
        self.capacity = Gauge(
            f"{prefix}_capacity",
            "What the capacity of all nodes is used for, by resource (CPU in cores) and use. bound: members of gangs; others: other pods; reserved: for members that are not bound yet; held: for replacements, preemptors and gangs that wait for long; unusable: free on nodes that take no pods. Of the leader only, measured once a minute.",
            ["resource", "use"],
            registry=self.registry,
        )
        self.database_size_bytes = Gauge(
            f"{prefix}_database_size_bytes",
            "Size of the database with the log.",
            registry=self.registry,
        )
        self.database_disk_free_bytes = Gauge(
            f"{prefix}_database_disk_free_bytes",
            "Free bytes of the disk of the embedded database, by its folder.",
            ["folder"],
            registry=self.registry,
        )
        self.notifications = Counter(
            f"{prefix}_notifications",
            "Requests to the receiver of notifications, by type and result. refused: it cannot use this one, which is not sent again; failed: it is sent again.",
            ["type", "result"],
            registry=self.registry,
        )
        self.notification_delay_seconds = Gauge(
            f"{prefix}_notification_delay_seconds",
            "Age of the oldest event of which the receiver of notifications has not been notified; 0: there is none.",
            registry=self.registry,
        )

    def _add_others(self, prefix: str) -> None:
        self._add_waits(prefix)
        self.control_loop_failures_in_a_row = Gauge(
            f"{prefix}_control_loop_failures_in_a_row",
            "How often the pass of the control loop, or a step of it for all gangs, has failed since its last success; the largest number.",
            registry=self.registry,
        )
        self.manifest_files_ignored = Gauge(
            f"{prefix}_manifest_files_ignored",
            "1 for each file of --cluster that is not valid; its last valid content stays in use.",
            ["file"],
            registry=self.registry,
        )
        self.reservations_released = Counter(
            f"{prefix}_reservations_released",
            "Releases of the reservations of a gang, by reason; bound: its pods run, and are counted as such from then on.",
            ["reason"],
            registry=self.registry,
        )
        self.preemptions_ended = Counter(
            f"{prefix}_preemptions_ended",
            "Preemptions that ended, by result. completed: the preemptor runs; cancelled: before a pod was evicted; cancelled-after-evictions: pods were evicted, but not for this preemptor.",
            ["result"],
            registry=self.registry,
        )
        self.new_gangs_limited = Gauge(
            f"{prefix}_new_gangs_limited",
            "New gangs that wait because their namespace has more than max_new_gangs_per_minute.",
            registry=self.registry,
        )
        self.full_collection_seconds = Histogram(
            f"{prefix}_full_collection_seconds",
            "Seconds for which the garbage collector stopped the process to look at all objects.",
            buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1),
            registry=self.registry,
        )

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

    def appended(self, data: EventData) -> None:
        """Count an event that this replica appended to the log."""
        self.events_appended.labels(type(data).__name__).inc()
        match data:
            case DriftDetected():
                self.drift_detected.labels(data.kind).inc()
            case HistoryTruncated():
                self.history_truncated.inc()
            case ReservationReleased():
                self.reservations_released.labels(data.reason).inc()
            case PreemptionCompleted():
                self.preemptions_ended.labels("completed").inc()
            case PreemptionCancelled():
                begun = data.evicted or data.units_in_progress
                result = "cancelled-after-evictions" if begun else "cancelled"
                self.preemptions_ended.labels(result).inc()
            case _:
                pass

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
