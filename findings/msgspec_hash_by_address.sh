#!/usr/bin/env bash
# msgspec 0.22.0: the hash of a frozen Struct depends on the address of its class, so PYTHONHASHSEED=0 does not fix the order of a set of them.
#
# Of equal frozen dataclasses and named tuples the hash is that of the fields: with one hash seed it is the same in each process. A Struct adds
# the address of its class, which the loader of Linux draws anew for each process. Within a process equal Structs have equal hashes. Who fixes
# the hash seed to repeat a run (a simulation, a shuffled test) and iterates a set or a frozenset of Structs still gets another order each
# time, and cannot find the run again; dictionaries keep the order of insertion.
#
# Installs msgspec in a temporary folder and prints the order of a set of eight values from five processes with PYTHONHASHSEED=0.
# Exit code 0: the order of dataclasses and named tuples is one, that of Structs is not. Exit code 2: addresses are not drawn here
# (kernel.randomize_va_space is 0), so there is nothing to see.
#
# Output seen on 2026-11-29 with msgspec 0.22.0, Python 3.11.7 (the order of Structs is another one each time):
#   dataclass    1 order of 5 processes:  37540216
#   named tuple  1 order of 5 processes:  37540216
#   Struct       5 orders of 5 processes: 02136754 20637541 63754021 67542103 75402163
set -euo pipefail
VERSION=0.22.0
[ "$(cat /proc/sys/kernel/randomize_va_space 2>/dev/null || echo 0)" != 0 ] || { echo "addresses are not drawn on this machine"; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "msgspec==$VERSION"
cat > "$work/order.py" <<'PY'
import dataclasses
from typing import NamedTuple

import msgspec


class Struct(msgspec.Struct, frozen=True):
    name: str


@dataclasses.dataclass(frozen=True)
class Dataclass:
    name: str


class Tuple(NamedTuple):
    name: str


for kind in (Dataclass, Tuple, Struct):
    values = [kind(f"gang-{number}") for number in range(8)]
    assert hash(values[0]) == hash(kind("gang-0"))
    print("".join(value.name[-1] for value in set(values)))
PY
for _ in 1 2 3 4 5; do PYTHONHASHSEED=0 "$work/venv/bin/python" "$work/order.py" | paste -sd ' '; done > "$work/orders"
failed=0
column=0
for kind in dataclass 'named tuple' Struct; do
  column=$((column + 1))
  orders=$(cut -d ' ' -f $column "$work/orders" | sort -u)
  count=$(wc -l <<< "$orders")
  word='order of 5 processes: '
  [ "$count" = 1 ] || word='orders of 5 processes:'
  printf '%-12s %s %s %s\n' "$kind" "$count" "$word" "$(paste -sd ' ' <<< "$orders")"
  if [ "$kind" = Struct ]; then [ "$count" -gt 1 ] || failed=1; else [ "$count" = 1 ] || failed=1; fi
done
exit "$failed"
