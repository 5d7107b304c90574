"""Query the rows of reports from the SQL views that users of psql read too.

Owns one query per report over `gx.v_*`. Must not parse payloads: the views do. Notes: a condition that is not
requested is omitted from the text instead of being written as always true; otherwise the query planner could not
use an index for the others. No query is ordered by position alone unless it begins at a position: with a limit,
the query planner would read the primary key from the beginning of the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from extender.core.log.gang_phase import TAKEN, UNDECIDED
from extender.core.model.ids import Position
from extender.queries.log.reports import EPOCH, LIMIT_MAX, ReportQuery, ReportRows
from extender.store.connections import ConnectionPool


class _Query(msgspec.Struct, frozen=True, kw_only=True):
    """Text with placeholders for `{where}`, `{waits}` (`_WAITS`) and `_PHRASES`, and the conditions for a namespace and a gang."""

    text: str
    namespace: str = "namespace = :namespace"
    namespaces: str = "namespace = ANY(:namespaces)"  # empty: it is not about gangs
    gang: str = "gang = :gang"


# The stretches of gx.v_pending without the times at which the workload of the gang was suspended. Trees are read that were compiled
# up to an hour before the first event of a gang that waits in the span, or later: the log may get a gang after its workload was
# suspended, while its pods go. Their text is compared first, which takes a tenth of the time of reading JSON: only those that have
# the name of such a gang are read, and those with an escape, in which a name may be written in another way. The names are the keys
# of a jsonb object, which are searched faster than rows. A workload that is gone suspends no gang that gets its name later.
_WAITS: Final = """(
    WITH stretch AS MATERIALIZED (
        SELECT s.*, split_part(s.gang, '/', 2) AS name,
               (SELECT o.at_us FROM gx.event o WHERE o.gang_uid = s.gang_uid AND o.stream_version = 1) AS first_us
        FROM gx.v_pending s
        WHERE s.until > :since AND s.since <= :until {where}
    ), tree AS MATERIALIZED (
        SELECT e.position, to_timestamp(e.at_us / 1e6::double precision) AS at, d.*
        FROM gx.event e
        CROSS JOIN LATERAL json_to_record(
            CASE WHEN strpos(e.payload::text, '\\u0000') > 0
            THEN replace(e.payload::text, '\\u0000', '\\ufffd')::json ELSE e.payload END
        ) AS d (workload text, uid text, groups json, adopted json, suspended boolean)
        WHERE e.type = 'TreeCompiled' AND e.position >= (
            SELECT b.position FROM gx.event b WHERE b.at_us >= (SELECT min(s.first_us) FROM stretch s) - 3600000000
            ORDER BY b.at_us, b.position LIMIT 1
        ) AND (strpos(e.payload::text, '\\') > 0 OR EXISTS (
            SELECT FROM unnest(string_to_array(e.payload::text, '"name":"')) n
            WHERE jsonb_exists((SELECT jsonb_object_agg(s.name, 1) FROM stretch s), split_part(n, '"', 1))
        ))
    ), retired AS MATERIALIZED (
        SELECT to_timestamp(e.at_us / 1e6::double precision) AS at, e.position, substring(e.payload::text FROM '"uid":"([^"]*)"') AS uid
        FROM gx.event e
        WHERE e.type = 'TreeRetired' AND e.position > (SELECT min(t.position) FROM tree t WHERE t.suspended)
    ), suspension AS MATERIALIZED (
        SELECT c.gang, c.kind, range_agg(tstzrange(c.at, least(c.until, c.retired))) AS spans
        FROM (
            SELECT split_part(t.workload, '/', 1) || '/' || g.name AS gang, g.kind, t.at, t.suspended, t.retired,
                   lead(t.at, 1, 'infinity') OVER (PARTITION BY split_part(t.workload, '/', 1), g.name, g.kind ORDER BY t.position) AS until
            FROM (
                SELECT t.*, r.at AS retired
                FROM tree t
                LEFT JOIN (
                    SELECT t.position, min(r.at) AS at
                    FROM tree t JOIN retired r ON r.uid = t.uid AND r.position > t.position
                    WHERE t.suspended GROUP BY t.position
                ) r USING (position)
            ) t
            CROSS JOIN LATERAL (
                SELECT r.name, r.kind, r.parent FROM json_to_recordset(t.groups) AS r (name text, kind text, parent text)
                UNION ALL
                SELECT a.name, 'PodGroup', a.parent FROM json_to_recordset(t.adopted) AS a (name text, parent text)
            ) g
            WHERE coalesce(g.parent, '') = ''
        ) c
        WHERE c.suspended
        GROUP BY c.gang, c.kind
    )
    SELECT s.position, s.namespace, s.gang, s.gang_uid, s.state, s.reason, lower(w.span) AS since, upper(w.span) AS until
    FROM stretch s
    LEFT JOIN suspension x USING (gang, kind)
    CROSS JOIN LATERAL unnest(tstzmultirange(tstzrange(s.since, s.until)) - coalesce(x.spans, '{{}}'::tstzmultirange)) AS w (span)
)"""
_PHRASES: Final[Mapping[str, str]] = {
    "clipped": "date_part('epoch', least(until, :until) - greatest(since, :since))",
    "overlaps": "until > :since AND since < :until",
    "at": "at >= :since AND at < :until",
    "taken": f"'{TAKEN}'",
    "undecided": f"'{UNDECIDED}'",
}
_QUERIES: Final[Mapping[str, _Query]] = {
    # The reason without a decision as by `undecided_reason`: the last admission lost capacity to other pods, or not.
    "pending": _Query(
        text="""
SELECT gang, gang_uid, state, reason, sum({clipped}) AS seconds, count(*), min(since), nullif(max(until), 'infinity')
FROM (
    SELECT gang, gang_uid, state, since, until, CASE WHEN reason <> '' THEN reason WHEN state = 'observed' AND EXISTS (
        SELECT FROM gx.event e
        WHERE e.gang_uid = p.gang_uid AND e.position <= p.position AND e.type = 'ReservationReleased'
          AND json_array_length(e.payload -> 'taken_by') > 0 AND e.at_us >= coalesce((
            SELECT max(a.at_us) FROM gx.event a
            WHERE a.gang_uid = p.gang_uid AND a.position <= p.position AND a.type = 'GangAdmitted'
        ), 0)
    ) THEN {taken} ELSE {undecided} END AS reason
    FROM {waits} p
    WHERE {overlaps}
) p
GROUP BY gang, gang_uid, state, reason
ORDER BY seconds DESC, gang, gang_uid, state, reason"""
    ),
    "pending-namespaces": _Query(
        text="""
SELECT namespace, state, count(DISTINCT gang_uid), count(DISTINCT gang_uid) FILTER (WHERE until >= :until),
       sum({clipped}) AS seconds, max({clipped})
FROM {waits} p
WHERE {overlaps}
GROUP BY namespace, state
ORDER BY seconds DESC, namespace, state"""
    ),
    # The rows of gx.v_queue_bypass in the order of admissions, computed for 512 positions at a time. So a page needs
    # little work (the view would first compute all pairs of a day), and an admission is compared only with trees that
    # were refused in its range of positions. A span of time is a span of positions, because recorded time never
    # decreases along the log. All pending states are selected by time and then filtered: for the refused alone the
    # query planner would read all that ever were, by state. MATERIALIZED: the JSON of an admission is read once.
    "queue-bypass": _Query(
        text="""
WITH unschedulable AS MATERIALIZED (
    SELECT p.gang, p.gang_uid, p.priority, p.from_position, coalesce(p.to_position, 9223372036854775807) AS to_position,
           (SELECT o.position FROM gx.event o WHERE o.gang_uid = p.gang_uid AND o.stream_version = 1) AS first
    FROM (
        SELECT s.gang, s.gang_uid, s.priority, s.state, s.from_position, s.to_position
        FROM gx.gang_state s
        WHERE s.state IN ('observed', 'waiting', 'unschedulable', 'preempting', 'invalid')
          AND to_timestamp(s.from_at_us / 1e6::double precision) < :until {where}
          AND coalesce(to_timestamp(s.to_at_us / 1e6::double precision), 'infinity'::timestamptz) > :since
        OFFSET 0
    ) p
    WHERE p.state = 'unschedulable'
), span AS MATERIALIZED (
    SELECT greatest(b.position, (SELECT min(from_position) FROM unschedulable)) AS since,
           least(
               coalesce(
                   (SELECT e.position FROM gx.event e WHERE e.at_us >= :until_us ORDER BY e.at_us, e.position LIMIT 1),
                   (SELECT max(e.position) + 1 FROM gx.event e)
               ),
               (SELECT max(to_position) FROM unschedulable)
           ) AS until
    FROM (SELECT e.position FROM gx.event e WHERE e.at_us >= :since_us ORDER BY e.at_us, e.position LIMIT 1) b
    WHERE EXISTS (SELECT FROM unschedulable)
)
SELECT f.gang, f.gang_uid, f.priority, f.bypassed_by, f.bypassed_by_priority,
       CASE WHEN f.bypassed_by_priority < f.priority THEN 'lower priority' ELSE 'later' END, f.pods, f.at, f.position
FROM (
    SELECT g.since, least(g.since + 512, span.until) AS until
    FROM span CROSS JOIN LATERAL generate_series(span.since, span.until - 1, 512) AS g (since)
    ORDER BY g.since
) s
CROSS JOIN LATERAL (
    WITH admitted AS MATERIALIZED (
        SELECT e.position, to_timestamp(e.at_us / 1e6::double precision) AS at, e.gang, e.gang_uid, d.priority,
               json_array_length(d.assignments) AS pods,
               (SELECT o.position FROM gx.event o WHERE o.gang_uid = e.gang_uid AND o.stream_version = 1) AS first
        FROM gx.event e
        CROSS JOIN LATERAL json_to_record(e.payload) AS d (priority bigint, assignments json)
        WHERE e.type IN ('GangAdmitted', 'GangExtended') AND e.position >= s.since AND e.position < s.until
    ), standing AS MATERIALIZED (
        SELECT * FROM unschedulable WHERE from_position < s.until AND to_position > s.since
    )
    SELECT r.gang, r.gang_uid, r.priority, a.gang AS bypassed_by, a.priority AS bypassed_by_priority, a.pods, a.at, a.position
    FROM admitted a
    JOIN standing r ON r.from_position < a.position AND r.to_position > a.position AND r.gang_uid <> a.gang_uid
     AND (r.priority > a.priority OR r.priority = a.priority AND r.first < a.first)
) f
ORDER BY s.since, f.position, f.gang, f.gang_uid""",
        namespace="split_part(s.gang, '/', 1) = :namespace",
        namespaces="split_part(s.gang, '/', 1) = ANY(:namespaces)",
        gang="s.gang = :gang",
    ),
    "preemption-pairs": _Query(
        text="""
SELECT preemptor, max(priority), victim, victim_kind, max(victim_priority), count(DISTINCT preemption) AS preemptions,
       count(*), count(*) FILTER (WHERE status = 'gone'), min(at), max(at)
FROM gx.v_victim
WHERE {at} {where}
GROUP BY preemptor, victim, victim_kind
ORDER BY preemptions DESC, preemptor, victim, victim_kind""",
        namespace=":namespace IN (namespace, victim_namespace)",
        namespaces="(namespace = ANY(:namespaces) OR victim_namespace = ANY(:namespaces))",
        gang=":gang IN (preemptor, victim)",
    ),
    # In vain as by `core.log.reservation_state.PreemptorRun`: it was cancelled after evictions and no other tree got the capacity, or the
    # members that were bound for it ran for less than a minute.
    "lost-work": _Query(
        text="""
SELECT date_trunc('hour', at, 'UTC') AS hour, namespace, preemptor_namespace, count(DISTINCT position) FILTER (WHERE NOT moved), sum(pods)::bigint,
       sum(lost) / 60 AS gpu_hours, count(DISTINCT position) FILTER (WHERE in_vain),
       coalesce(sum(lost) FILTER (WHERE in_vain), 0) / 60, count(*) FILTER (WHERE moved)
FROM (
    SELECT p.position, p.at, p.preemptor, u.victim, split_part(u.victim, '/', 1) AS namespace, p.namespace AS preemptor_namespace, u.pods, u.lost, CASE p.outcome
               WHEN 'pending' THEN false
               WHEN 'cancelled' THEN p.reason NOT IN ('taken-over', 'no-longer-needed')
               ELSE p.kind <> 'Pod' AND (
                   SELECT coalesce(bool_and(coalesce(b.to_at_us - b.from_at_us < 60000000, false)), false)
                   FROM gx.placement b
                   WHERE b.gang = p.preemptor AND b.gang_uid = p.preemptor_uid AND b.kind = 'bound' AND b.from_position > p.position
                     AND b.from_position < q.ended_position
               )
           END AS in_vain, false AS moved
    FROM gx.v_preemption p
    JOIN gx.event e USING (position)
    JOIN gx.preemption q USING (position)
    CROSS JOIN LATERAL (
        SELECT r.path AS victim, coalesce((r.cost ->> 'lost_min')::double precision, 0) AS lost, (
            SELECT count(*) FROM gx.victim v
            WHERE v.position = p.position AND v.unit = r.kind || '/' || r.path AND v.status = 'gone'
        ) AS pods
        FROM json_to_recordset(e.payload -> 'victims') AS r (kind text, path text, cost json)
    ) u
    WHERE p.at >= :since AND p.at < :until AND u.pods > 0
    UNION ALL
    SELECT m.position, to_timestamp(m.at_us / 1e6::double precision), p.for_gang, m.gang, split_part(m.gang, '/', 1),
           split_part(p.for_gang, '/', 1), 1, coalesce((p.moves -> d.number - 1 ->> 'lost_min')::double precision, 0), false, true
    FROM gx.event m
    JOIN gx.event q ON q.position = m.cause_position
    CROSS JOIN LATERAL json_to_record(m.payload) AS d (number int)
    CROSS JOIN LATERAL (
        SELECT coalesce(r.for_gang, '') AS for_gang, r.moves FROM json_to_record(q.payload) AS r (for_gang text, moves json)
    ) p
    WHERE m.type = 'MoveCompleted' AND m.at_us >= :since_us AND m.at_us < :until_us
) t
WHERE true {where}
GROUP BY hour, namespace, preemptor_namespace
ORDER BY hour, namespace, preemptor_namespace""",
        namespace=":namespace IN (namespace, preemptor_namespace)",
        namespaces="(namespace = ANY(:namespaces) OR preemptor_namespace = ANY(:namespaces))",
        gang=":gang IN (preemptor, victim)",
    ),
    "largest-free": _Query(
        text="""
SELECT at, resource, level, domain, free, nodes, total, nullif(until, 'infinity'), position
FROM gx.v_largest_free
WHERE at >= coalesce((SELECT r.at FROM gx.v_largest_free r WHERE r.at < :since ORDER BY r.at DESC LIMIT 1), :since)
  AND at < :until AND until > :since {where}
ORDER BY at, position, resource, level""",
        namespaces="",
    ),
    "largest-free-used": _Query(
        text="""
SELECT gang, gang_uid, resource, level, domain, free, used, pods, used_at, position
FROM gx.v_largest_free_used
WHERE at >= coalesce((SELECT r.at FROM gx.v_largest_free r WHERE r.at < :since ORDER BY r.at DESC LIMIT 1), :since)
  AND at < :until AND used_at >= :since AND used_at < :until {where}
ORDER BY at, used_at, position, resource, level"""  # ordered by `at` first: the order is the same, and a page needs few rows
    ),
    # An interval changes the sum at the first time that it covers, and at the first one behind it: `width_bucket` counts
    # the times before it begins and before it ends. No index has placements by time, so for each node those are read
    # that ended within the span or later, as for a state of the past.
    "usage": _Query(
        text="""
WITH RECURSIVE node AS (
    (SELECT p.node FROM gx.placement p ORDER BY p.node LIMIT 1)
    UNION ALL
    SELECT (SELECT p.node FROM gx.placement p WHERE p.node > n.node ORDER BY p.node LIMIT 1)
    FROM node n WHERE n.node IS NOT NULL
), span AS MATERIALIZED (
    SELECT array_agg(CAST(:since_us AS bigint) + (CAST(:until_us AS bigint) - CAST(:since_us AS bigint)) * n / 96 ORDER BY n) AS times,
           coalesce((
               SELECT e.position FROM gx.event e WHERE e.at_us < :since_us ORDER BY e.at_us DESC, e.position DESC LIMIT 1
           ), 0) AS before
    FROM generate_series(0, 96) AS n
), stretch AS (
    SELECT 'pending' AS state, 'gangs' AS resource, 1::bigint AS amount, s.from_at_us, s.to_at_us
    FROM (
        SELECT p.gang, (extract(epoch FROM p.since) * 1000000)::bigint AS from_at_us,
               (extract(epoch FROM nullif(p.until, 'infinity')) * 1000000)::bigint AS to_at_us
        FROM {waits} p
    ) s
    UNION ALL
    SELECT s.kind, r.key, r.value::bigint, s.from_at_us, s.to_at_us
    FROM span CROSS JOIN node
    CROSS JOIN LATERAL (
        SELECT p.kind, p.gang, p.resources, p.from_at_us, p.to_at_us
        FROM gx.placement p
        WHERE p.node = node.node AND coalesce(p.to_position, 9223372036854775807) > span.before
        OFFSET 0
    ) s
    CROSS JOIN LATERAL jsonb_each_text(s.resources) AS r (key, value)
    WHERE s.kind IN ('bound', 'reserved') AND (r.key = 'cpu' OR strpos(r.key, '/') > 0) {where}
), change AS (
    SELECT s.state, s.resource, c.n, sum(c.sign * s.amount) AS amount
    FROM stretch s CROSS JOIN span
    CROSS JOIN LATERAL (VALUES
        (width_bucket(s.from_at_us - 1, span.times), 1),
        (width_bucket(coalesce(s.to_at_us, 9223372036854775807) - 1, span.times), -1)
    ) AS c (n, sign)
    GROUP BY s.state, s.resource, c.n
), line AS (
    SELECT DISTINCT state, resource FROM change UNION SELECT 'pending', 'gangs'
), total AS (
    SELECT u.at_us, u.n, l.state, l.resource,
           coalesce(sum(c.amount) OVER (PARTITION BY l.state, l.resource ORDER BY u.n), 0) AS amount
    FROM span CROSS JOIN LATERAL unnest(span.times) WITH ORDINALITY AS u (at_us, n) CROSS JOIN line l
    LEFT JOIN change c ON c.n = u.n - 1 AND c.state = l.state AND c.resource = l.resource
)
SELECT timestamptz 'epoch' + t.at_us * interval '1 microsecond' AS at, t.state, t.resource,
       (CASE t.resource WHEN 'cpu' THEN t.amount / 1000 ELSE t.amount END)::double precision
FROM total t
WHERE (t.amount <> 0 OR t.state = 'pending') AND EXISTS (SELECT FROM total WHERE amount <> 0)
ORDER BY t.n, t.state, t.resource""",
        namespace="split_part(s.gang, '/', 1) = :namespace",
        namespaces="split_part(s.gang, '/', 1) = ANY(:namespaces)",
        gang="s.gang = :gang",
    ),
    "reserved": _Query(
        text="""
SELECT gang, gang_uid, resource, sum(amount * {clipped}) / 3600 AS hours, count(*),
       count(*) FILTER (WHERE until >= :until), max({clipped})
FROM gx.v_reserved
WHERE {overlaps} AND (resource = 'cpu' OR strpos(resource, '/') > 0) {where}
GROUP BY gang, gang_uid, resource
ORDER BY hours DESC, gang, gang_uid, resource"""
    ),
    "decisions": _Query(
        text="""
SELECT date_trunc('hour', at, 'UTC') AS hour,
       count(*) FILTER (WHERE decision = 'admitted'), count(*) FILTER (WHERE decision = 'extended'), sum(pods)::bigint,
       count(*) FILTER (WHERE outcome = 'impossible'), count(*) FILTER (WHERE outcome = 'unknown'),
       count(*) FILTER (WHERE outcome = 'waiting'), count(*) FILTER (WHERE outcome = 'invalid')
FROM (SELECT at, decision, outcome, pods FROM gx.v_decision WHERE {at} {where} OFFSET 0) d  -- no JSON is sorted
GROUP BY hour
ORDER BY hour"""
    ),
    "terminations": _Query(
        text="""
SELECT at, gang, gang_uid, pod, node, cause, coalesce(preemptor, ''), ran_seconds, position
FROM gx.v_member_terminated
WHERE {at} {where}
ORDER BY at, position"""
    ),
}
_POSITIONS: Final = """
SELECT (SELECT coalesce(max(position), 0) FROM gx.event), (SELECT coalesce(max(position), 0) FROM gx.projection)
"""
_PARAMETER: Final = re.compile(r"(?<!:):([a-z]\w*)")
_TYPES: Final = {datetime: "timestamptz", int: "bigint", str: "text", list: "text[]"}


def query_of(report: ReportQuery) -> tuple[str, list[object]]:
    """Return the SQL of a report and its parameters; values of the request are only in the parameters."""
    query = _QUERIES[report.name]
    values: dict[str, object] = {
        "since": _datetime(report.since_us),
        "until": _datetime(report.until_us),
        "since_us": report.since_us,
        "until_us": report.until_us,
        "limit": max(0, min(report.limit, LIMIT_MAX)) + 1,
    }
    where = ""
    if report.namespaces is not None and query.namespaces:
        where += f" AND {query.namespaces}"
        values["namespaces"] = sorted(report.namespaces)
    if report.namespace:
        where += f" AND {query.namespace}"
        values["namespace"] = report.namespace
    if report.gang:
        where += f" AND {query.gang}"
        values["gang"] = report.gang
    waits = _WAITS.format(where=where)
    text = query.text.format(where=where, waits=waits, **_PHRASES)
    numbers: dict[str, int] = {}

    def numbered(parameter: re.Match[str]) -> str:
        name = parameter[1]
        return f"${numbers.setdefault(name, len(numbers) + 1)}::{_TYPES[type(values[name])]}"

    text = _PARAMETER.sub(numbered, f"{text}\nLIMIT :limit")
    return text, [values[name] for name in numbers]


def _datetime(at_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=at_us)


class PostgresReportQueries:
    """The `ReportQueries` port on PostgreSQL."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def rows(self, query: ReportQuery) -> ReportRows:
        """See `ReportQueries.rows`."""
        text, values = query_of(query)
        doing = f"asking for report {query.name} (a shorter span, or one gang, takes less time)"
        async with self._pool.use(doing) as connection:
            head, projected = await connection.fetchrow(_POSITIONS)
            rows = await connection.fetch(text, *values)
        return ReportRows(rows=rows, head=Position(head), projected=Position(projected))
