#!/bin/sh
# pip on PATH, as in the official image of Python: from the wheel that Debian's python3-venv brings.
for wheel in /usr/share/python-wheels/pip-*.whl; do
  exec python3 "$wheel/pip" "$@"
done
