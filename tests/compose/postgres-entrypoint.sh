#!/bin/bash
# Entry point of the stand-in for the official PostgreSQL image, written after that image's documentation:
# POSTGRES_USER, POSTGRES_PASSWORD (each also as ..._FILE), POSTGRES_DB, POSTGRES_INITDB_ARGS,
# POSTGRES_HOST_AUTH_METHOD and PGDATA are honoured, and an empty data directory is prepared with the files of
# /docker-entrypoint-initdb.d in the order of their names, by a server that does not listen on TCP.
set -euo pipefail

value_of() {  # value_of VARIABLE DEFAULT: from the environment, or from the file that VARIABLE_FILE names
  local file="${1}_FILE"
  if [ -n "${!1:-}" ] && [ -n "${!file:-}" ]; then
    echo "$1 and $file exclude each other" >&2
    exit 1
  fi
  if [ -n "${!file:-}" ]; then cat "${!file}"; else printf '%s' "${!1:-$2}"; fi
}

prepare() {
  local user password database method
  user=$(value_of POSTGRES_USER postgres)
  password=$(value_of POSTGRES_PASSWORD '')
  database=$(value_of POSTGRES_DB "$user")
  method=${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}
  if [ -z "$password" ] && [ "$method" != trust ]; then
    echo "POSTGRES_PASSWORD is not set, and POSTGRES_HOST_AUTH_METHOD is not trust" >&2
    exit 1
  fi
  local -a make=(initdb --username="$user" --pgdata="$PGDATA")
  # shellcheck disable=SC2206  # several arguments in one variable, as documented
  make+=(${POSTGRES_INITDB_ARGS:-})
  if [ -n "$password" ]; then "${make[@]}" --pwfile=/dev/stdin <<< "$password"; else "${make[@]}"; fi
  printf '\nhost all all all %s\n' "$method" >> "$PGDATA/pg_hba.conf"
  pg_ctl --pgdata="$PGDATA" --wait --options="-c listen_addresses= -p 5432" start
  local -a run=(psql --set=ON_ERROR_STOP=1 --no-password --no-psqlrc --username="$user")
  if [ "$database" != postgres ]; then
    "${run[@]}" --dbname=postgres --set=name="$database" <<< 'CREATE DATABASE :"name";'
  fi
  local file
  for file in /docker-entrypoint-initdb.d/*; do
    echo "prepare: $file"
    case $file in
      *.sh) if [ -x "$file" ]; then "$file"; else . "$file"; fi ;;
      *.sql) "${run[@]}" --dbname="$database" --file="$file" ;;
      *.sql.gz) gunzip --stdout "$file" | "${run[@]}" --dbname="$database" ;;
    esac
  done
  pg_ctl --pgdata="$PGDATA" --wait --mode=fast stop
}

if [ "${1:0:1}" = - ]; then set -- postgres "$@"; fi
if [ "$1" = postgres ] && [ "$(id -u)" = 0 ]; then
  install --directory --owner=postgres --group=postgres --mode=700 "$PGDATA"
  install --directory --owner=postgres --group=postgres --mode=3777 /var/run/postgresql
  chown --recursive postgres:postgres "$PGDATA"
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then prepare; fi
exec "$@"
