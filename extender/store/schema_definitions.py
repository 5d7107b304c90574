"""The definitions of a schema beside those that its migrations make, in the form in which PostgreSQL prints them.

Owns the comparison texts. Must not write anything and needs no right but those of gx_writer. What the migrations make is taken
from their own statements (`migration_statements`), so nothing is recorded in the database, where its owner could change it:

- Functions: PostgreSQL keeps the body as it was written; the head is brought to one form.
- Triggers and tables: a few words, which have one form.
- Views: PostgreSQL prints them in another form in each major version, and to make the view of the migration a role would need
  the right to create. So both are planned: the view, and the query of the migration. The plans of EXPLAIN VERBOSE have
  every expression and condition, and the same server writes both a moment after each other. What plans do not have, the
  numbers of LIMIT and OFFSET, frames of windows, and the keys of json_to_record, is compared as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import asyncpg

from extender.ports.verification_ports import Definition
from extender.store.schema_migration import is_known, migration_statements, newest_revision

PLANS_COMPARED: Final = 3  # times, before a view differs: statistics may change between two plans
# Names are printed with their schema, and plans do not depend on settings of the role.
_PREPARE: Final = """
SELECT set_config('search_path', 'pg_catalog', true), set_config('geqo', 'off', true),
       set_config('max_parallel_workers_per_gather', '0', true), set_config('statement_timeout', '60s', true)
"""
_REVISION: Final = "SELECT version_num FROM gx.migration"
_FUNCTIONS: Final = """
SELECT p.proname AS name, pg_get_functiondef(p.oid) AS text
FROM pg_proc p WHERE p.pronamespace = 'gx'::regnamespace AND p.prokind IN ('f', 'p') ORDER BY 1, 2
"""
_TRIGGERS: Final = """
SELECT t.tgrelid::regclass::text || '.' || t.tgname AS name, pg_get_triggerdef(t.oid) AS text, t.tgenabled AS enabled
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = 'gx'::regnamespace AND NOT t.tgisinternal ORDER BY 1
"""
_RELATIONS: Final = """
SELECT c.relname AS name, concat_ws(', ',
    CASE c.relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' ELSE 'kind ' || c.relkind::text END,
    CASE WHEN c.relpersistence <> 'p' THEN 'unlogged' END,
    CASE WHEN c.relrowsecurity THEN 'row level security' END,
    (SELECT string_agg('rule ' || r.rulename, ', ' ORDER BY r.rulename)
     FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.rulename <> '_RETURN'),
    (SELECT string_agg('child ' || i.inhrelid::regclass::text, ', ' ORDER BY i.inhrelid)
     FROM pg_inherits i WHERE i.inhparent = c.oid),
    CASE WHEN c.relkind = 'v' THEN array_to_string(c.reloptions, ', ') END) AS text
FROM pg_class c WHERE c.relnamespace = 'gx'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY 1
"""
# Unqualified names in functions are looked up in pg_catalog and gx, so one that fits better would be used instead.
_ADDED: Final = """
SELECT 'operator ' || o.oid::regoperator::text AS name FROM pg_operator o WHERE o.oprnamespace = 'gx'::regnamespace
UNION ALL
SELECT 'aggregate ' || p.oid::regprocedure::text FROM pg_proc p
WHERE p.pronamespace = 'gx'::regnamespace AND p.prokind NOT IN ('f', 'p') ORDER BY 1
"""
# Of functions and operators elsewhere, plans may have the result alone (IMMUTABLE); those of PostgreSQL itself are not recorded.
_FOREIGN: Final = """
SELECT DISTINCT pg_describe_object(d.refclassid, d.refobjid, 0)
FROM pg_depend d JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
WHERE r.ev_class = $1::text::regclass AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass)
  AND NOT EXISTS (SELECT FROM pg_proc p WHERE d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
                  AND p.pronamespace = 'gx'::regnamespace)
ORDER BY 1
"""
# What others than the owner may do beyond reading; of gx.lease also reading, because its id is the right to append.
_RIGHTS: Final = """
SELECT DISTINCT o.name, a.privilege_type AS right, coalesce(g.rolname, 'PUBLIC') AS role
FROM (SELECT 'schema gx' AS name, n.nspowner AS owner, n.nspacl AS acl, 'USAGE' AS harmless
      FROM pg_namespace n WHERE n.nspname = 'gx'
      UNION ALL
      SELECT c.oid::regclass::text, c.relowner, c.relacl, CASE WHEN c.relname <> 'lease' THEN 'SELECT' END
      FROM pg_class c WHERE c.relnamespace = 'gx'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
      UNION ALL
      SELECT c.oid::regclass::text || '.' || t.attname, c.relowner, t.attacl, CASE WHEN t.attname <> 'lease_id' THEN 'SELECT' END
      FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid WHERE c.relnamespace = 'gx'::regnamespace
      UNION ALL
      SELECT p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)), NULL
      FROM pg_proc p WHERE p.pronamespace = 'gx'::regnamespace
     ) o CROSS JOIN LATERAL aclexplode(o.acl) a LEFT JOIN pg_roles g ON g.oid = a.grantee
WHERE a.grantee <> o.owner AND a.privilege_type IS DISTINCT FROM o.harmless
ORDER BY 1, 2, 3
"""
# The roles that the groups of roles.sql can act as, by any number of steps: none that owns, writes or reads more than they may.
# Login roles are not looked at: administrators may make one that migrates and reads. Nor are members of superusers.
_MEMBERSHIPS: Final = """
WITH RECURSIVE held (member, role) AS (
    SELECT g.oid, g.oid FROM pg_roles g WHERE g.rolname IN ('gx_writer', 'gx_auditor')
    UNION
    SELECT h.member, m.roleid FROM held h JOIN pg_auth_members m ON m.member = h.role
)
SELECT g.rolname AS member, r.rolname AS role
FROM held h JOIN pg_roles g ON g.oid = h.member JOIN pg_roles r ON r.oid = h.role
WHERE r.rolsuper OR h.member <> h.role AND r.rolname IN (
    'gx_owner', 'gx_writer', 'pg_read_all_data', 'pg_write_all_data', 'pg_read_server_files', 'pg_write_server_files',
    'pg_execute_server_program')
ORDER BY 1, 2
"""
# Login roles that can change what is stored, by any number of steps, with what lets them.
_PRIVILEGED: Final = """
WITH RECURSIVE able (role, source, because) AS (
    SELECT g.oid, g.rolname, CASE WHEN g.rolsuper THEN 'superuser' ELSE 'owner of schema gx' END COLLATE "C"
    FROM pg_roles g
    WHERE g.rolsuper OR g.oid = (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'gx')
       OR g.rolname IN ('gx_owner', 'pg_write_all_data', 'pg_write_server_files', 'pg_execute_server_program')
    UNION
    SELECT m.member, a.source, 'member of ' || a.source FROM able a JOIN pg_auth_members m ON m.roleid = a.role
)
SELECT g.rolname || ' (' || string_agg(DISTINCT a.because, ', ') || ')'
FROM able a JOIN pg_roles g ON g.oid = a.role WHERE g.rolcanlogin GROUP BY g.rolname ORDER BY g.rolname
"""
# Of gx_writer, by the newest grants.sql; which functions it may call is in their definitions.
_WRITER: Final = "gx_writer"
_WRITES: Final = frozenset(
    (
        ("gx.snapshot", "INSERT"),
        ("gx.snapshot", "DELETE"),
        ("gx.decision_input_chunk", "INSERT"),
        ("gx.decision_input", "INSERT"),
    )
)

_LEADING_COMMENTS: Final = re.compile(r"\A(?:\s*--[^\n]*\n)*\s*")
_CREATE: Final = re.compile(
    r"CREATE (?:OR REPLACE )?(FUNCTION|VIEW|TABLE) gx\.(\w+)|CREATE (TRIGGER) (\w+) .*?\bON gx\.(\w+)", re.DOTALL
)  # fmt: skip
_DROP: Final = re.compile(
    r"DROP (FUNCTION|VIEW|TABLE) (?:IF EXISTS )?gx\.(\w+)|DROP (TRIGGER) (?:IF EXISTS )?(\w+) ON gx\.(\w+)"
)
_VIEW_HEAD: Final = re.compile(r"\ACREATE (?:OR REPLACE )?VIEW gx\.\w+ AS\s")
_TRIGGER_EVENTS: Final = re.compile(r"(?<= BEFORE )\w+(?: OR \w+)*(?= ON )")
_COMMENT: Final = re.compile(r"--[^\n]*")
_SETTING: Final = re.compile(r"(?<= SET )(\w+) = (.*?)(?= SET |$)")
# What EXPLAIN leaves out: how many rows, of which frame, and lists of values
_UNPLANNED: Final = re.compile(
    r"\b(?:LIMIT|OFFSET|FETCH FIRST)\s+[^\s);]+|\b(?:TIES|DISTINCT ON|OVER|ORDINALITY)\b"
    r"|\b(?:ROWS|RANGE|GROUPS) BETWEEN.*?\)|\bVALUES\b.*?\) ",
    re.IGNORECASE | re.DOTALL,
)
# The keys that json_to_record reads. Neither plans nor pg_get_viewdef have them, if the columns are renamed behind it.
_RECORDS: Final = re.compile(r"\w+_to_record(?:set)?\([^()]*\) AS \w+ \(([^()]*)\)")
_STORED_RECORDS: Final = re.compile(r":funccolnames \(([^()]*)\)")
_RULE: Final = "SELECT ev_action::text FROM pg_rewrite WHERE ev_class = $1::text::regclass AND rulename = '_RETURN'"
# The alias with which a plan reads a table, function or subquery: EXPLAIN makes it unique, dump and restore write it into the view.
_ALIAS: Final = re.compile(r"(?m) Scan\b.*? on (?:\S+ )?(\w+)$")
_Key = tuple[str, str]  # kind in lower case, name


async def read_definitions(connection: asyncpg.Connection) -> Sequence[Definition]:
    """Return the definitions of views, functions, triggers, tables and rights of schema gx, and those that are expected.

    Args:
        connection: Of a role with the rights of gx_writer.

    Returns:
        Empty for a schema of a revision that this version does not know, and while another process migrates it.
    """
    async with connection.transaction(readonly=True):
        await connection.execute(_PREPARE)
        revision = await connection.fetchval(_REVISION)
        if revision is None or not is_known(revision):
            return ()
        expected = _expected(revision)
        definitions = [
            *await _functions(connection, expected),
            *await _triggers(connection, expected),
            *await _relations(connection, expected),
        ]
        if revision == newest_revision():  # `_WRITES` are of its grants.sql
            definitions += await _rights(connection)
        for (name,) in await connection.fetch(_ADDED):
            definitions.append(Definition(name=name, expected="", stored=name))
        for (kind, name), text in expected.items():
            if kind == "view" and any(
                d.name == f"view gx.{name}" and d.stored.partition(",")[0] == "view"
                for d in definitions
            ):
                query = _VIEW_HEAD.sub("", text)
                definitions.append(await _view(connection, name, query))
        if await connection.fetchval(_REVISION) != revision:
            return ()
    return definitions


async def read_privileged_roles(connection: asyncpg.Connection) -> Sequence[str]:
    """Return the login roles that can change what is stored, each with what lets it: `alice (member of gx_owner)`."""
    return [row[0] for row in await connection.fetch(_PRIVILEGED)]


def _expected(revision: str) -> Mapping[_Key, str]:
    """Return the newest statement that creates each object; functions stand for all of their overloads."""
    newest: dict[_Key, str] = {}
    for statement in migration_statements(revision):
        text = _LEADING_COMMENTS.sub("", statement)
        created, dropped = _CREATE.match(text), _DROP.match(text)
        if created is not None:
            newest[_key(created)] = text.rstrip().removesuffix(";")
        elif dropped is not None:
            newest.pop(_key(dropped), None)
    return newest


def _key(match: re.Match[str]) -> _Key:
    kind, name, trigger, trigger_name, table = match.groups()
    return (trigger.lower(), f"gx.{table}.{trigger_name}") if trigger else (kind.lower(), name)


def _of(expected: Mapping[_Key, str], kind: str) -> dict[str, str]:
    return {name: text for (of, name), text in expected.items() if of == kind}


async def _functions(
    connection: asyncpg.Connection, expected: Mapping[_Key, str]
) -> Sequence[Definition]:
    expected_texts = {name: _function(text) for name, text in _of(expected, "function").items()}
    stored: dict[str, list[str]] = {}
    for name, text in await connection.fetch(_FUNCTIONS):
        stored.setdefault(name, []).append(_function(text))
    return tuple(_paired("function gx.{}", expected_texts, stored))


def _function(text: str) -> str:
    """Return a definition with its head in the form in which PostgreSQL prints it, on one line, without what is the default."""
    head, _, body = text.partition("AS $function$")
    head = " ".join(_COMMENT.sub("", head).split())
    head = head.replace("CREATE OR REPLACE ", "CREATE ").replace("( ", "(").replace(" )", ")")
    head = head.replace(" VOLATILE", "").replace(" RETURNS record", "")
    head = _SETTING.sub(lambda setting: f"{setting[1]} TO {_quoted(setting[2])}", head)
    return f"{head}\nAS {body.strip().removesuffix('$function$')}"


def _quoted(values: str) -> str:
    return ", ".join(value if value[0] == "'" else f"'{value}'" for value in values.split(", "))


async def _triggers(
    connection: asyncpg.Connection, expected: Mapping[_Key, str]
) -> Sequence[Definition]:
    expected_texts = {name: _trigger(text) for name, text in _of(expected, "trigger").items()}
    stored = {
        name: [_trigger(text) + ("" if enabled == b"O" else f"\nenabled: {enabled.decode()}")]
        for name, text, enabled in await connection.fetch(_TRIGGERS)
    }
    return tuple(_paired("trigger {}", expected_texts, stored))


def _trigger(text: str) -> str:
    """Return a definition with its events in one order."""
    text = " ".join(text.split())
    events = _TRIGGER_EVENTS.search(text)
    if events is None:
        return text
    ordered = " OR ".join(sorted(events[0].split(" OR ")))
    return text[: events.start()] + ordered + text[events.end() :]


async def _relations(
    connection: asyncpg.Connection, expected: Mapping[_Key, str]
) -> Sequence[Definition]:
    """Return whether tables and views are that, without rules and row security; what others add beside them is theirs."""
    stored = {row["name"]: row["text"] for row in await connection.fetch(_RELATIONS)}
    expected_kinds = dict.fromkeys([*_of(expected, "table"), "migration"], "table")
    expected_kinds |= dict.fromkeys(_of(expected, "view"), "view")
    return [
        Definition(name=f"{kind} gx.{name}", expected=kind, stored=stored.get(name, ""))
        for name, kind in expected_kinds.items()
    ]


def _paired(
    name: str, expected_texts: Mapping[str, str], stored: Mapping[str, Sequence[str]]
) -> Iterator[Definition]:
    """Yield expected beside stored texts; of several with one name, that which is as expected."""
    for key in sorted({*expected_texts, *stored}):
        texts = list(stored.get(key, ()))
        expected = expected_texts.get(key, "")
        if expected:
            mine = expected if expected in texts else next(iter(texts), "")
            yield Definition(name=name.format(key), expected=expected, stored=mine)
            if mine:
                texts.remove(mine)
        for text in texts:
            head = text.partition("(")[2].partition(")")[0]
            full = f"{name.format(key)}({head})" if "FUNCTION" in text[:16] else name.format(key)
            yield Definition(name=full, expected="", stored=text)


async def _view(connection: asyncpg.Connection, name: str, query: str) -> Definition:
    """Return the plan of a view beside that of the query of its migration."""
    for attempt in range(PLANS_COMPARED):
        expected = await _plan(connection, f"SELECT * FROM ({query}) AS {name}")  # noqa: S608 -- our text
        stored = await _plan(connection, f"SELECT * FROM gx.{name}")  # noqa: S608 -- our names
        if stored == expected or attempt == PLANS_COMPARED - 1:
            break
    printed = await connection.fetchval("SELECT pg_get_viewdef($1::text::regclass)", f"gx.{name}")
    rule = await connection.fetchval(_RULE, f"gx.{name}")
    expected += f"\nrows: {_unplanned(query)}"
    stored += f"\nrows: {_unplanned(printed)}"
    records = (
        [column.split()[0] for column in columns.split(",")]
        for columns in _RECORDS.findall(_COMMENT.sub("", query))
    )
    expected += "".join(f"\nkeys: {' '.join(keys)}" for keys in sorted(records))
    read = (columns.replace('"', "") for columns in _STORED_RECORDS.findall(rule))
    stored += "".join(f"\nkeys: {keys}" for keys in sorted(read))
    foreign = [row[0] for row in await connection.fetch(_FOREIGN, f"gx.{name}")]
    stored += "".join(f"\ncalls {name}" for name in foreign)
    return Definition(name=f"query of view gx.{name}", expected=expected, stored=stored)


def _unplanned(query: str) -> str:
    words = (" ".join(text.split()) for text in _UNPLANNED.findall(_COMMENT.sub("", query)))
    return ", ".join(sorted(words))


async def _plan(connection: asyncpg.Connection, query: str) -> str:
    """Return the columns of a query with their types, and its plan with all expressions; or why there is none."""
    try:
        async with connection.transaction():
            columns = (await connection.prepare(query)).get_attributes()
            lines = await connection.fetch(f"EXPLAIN (VERBOSE, COSTS OFF) {query}")
    except asyncpg.SyntaxOrAccessError as error:
        return f"error: {error}"
    named = ", ".join(f"{column.name} {column.type.name}" for column in columns)
    return _with_numbered_aliases("\n".join([f"columns: {named}", *(line[0] for line in lines)]))


def _with_numbered_aliases(plan: str) -> str:
    """Return a plan whose aliases are numbered in the order of its scans: `d_1` of a restored view is the `d` of its migration."""
    numbers = {alias: number for number, alias in enumerate(dict.fromkeys(_ALIAS.findall(plan)))}
    if not numbers:
        return plan
    used = re.compile(
        rf"(?m)(?<![\w.'])({'|'.join(sorted(numbers, key=len, reverse=True))})(?=\.|$)"
    )
    return used.sub(lambda use: f"{re.sub(r'_[0-9]+$', '', use[1])}#{numbers[use[1]]}", plan)


async def _rights(connection: asyncpg.Connection) -> Sequence[Definition]:
    """Return the rights that only the owner should have."""
    extra: list[Definition] = []
    secure = {
        row["name"]
        for row in await connection.fetch(
            "SELECT p.oid::regprocedure::text AS name FROM pg_proc p WHERE p.pronamespace = 'gx'::regnamespace "
            "AND (p.prosecdef OR p.proname = 'references_of')"
        )
    }
    for name, right, role in await connection.fetch(_RIGHTS):
        allowed = (name, right) in _WRITES or (right == "EXECUTE" and name in secure)
        if not (role == _WRITER and allowed):
            extra.append(
                Definition(name=f"right {right} of {role} on {name}", expected="", stored=right)
            )
    for member, role in await connection.fetch(_MEMBERSHIPS):
        privilege = "right of a superuser" if member == role else f"membership in {role}"
        extra.append(Definition(name=f"{privilege} of {member}", expected="", stored=privilege))
    return extra
