#!/usr/bin/env bash
# kubernetes_asyncio 36.1.0: each ApiClient loads the certificate authorities of the machine, also for a host with http:// and with a CA of its own.
#
# The constructor makes a TLS context with the authorities of the machine whatever the URL is; with http:// nothing uses it, and `verify_ssl=False`
# does not avoid it. On Debian 12 that is nearly all of what a client costs to create: about 40 ms of CPU in place of less than one. Programs that create
# a client for each cluster, worker or test pay it each time. Who creates many shares one, or sets SSL_CERT_FILE to an empty file (and SSL_CERT_DIR to
# an empty folder) where no public authority is needed: our tests of informers went from 16.1 to 4.4 s of CPU.
#
# Installs kubernetes_asyncio in a temporary folder, creates clients that never connect, and prints what was loaded and the milliseconds of CPU. Exit
# code 0: the machine's authorities are loaded for http:// too, and creating a client without them takes less than a fifth. Exit code 2: this machine
# has so few authorities that there is nothing to see.
#
# Output seen on 2026-11-30 with kubernetes_asyncio 36.1.0, Python 3.11.7, Debian 12:
#   http|the machine's|38.9
#   http, verify_ssl=False|the machine's|40.6
#   https|the machine's|56.3
#   with an empty SSL_CERT_FILE:
#   http|the machine's|0.3
#   http, verify_ssl=False|the machine's|0.6
#   https|the machine's|0.6
set -euo pipefail
VERSION=36.1.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "kubernetes_asyncio==$VERSION"
: > "$work/empty.pem"
cat > "$work/clients.py" <<'PY'
import asyncio
import ssl
import time

from kubernetes_asyncio import client

loaded = []
default_certs, verify_locations = ssl.SSLContext.load_default_certs, ssl.SSLContext.load_verify_locations


def load_default_certs(context, *args):
    loaded.append("the machine's")
    return default_certs(context, *args)


def load_verify_locations(context, *args, **named):
    loaded.append("given")
    return verify_locations(context, *args, **named)


ssl.SSLContext.load_default_certs = load_default_certs
ssl.SSLContext.load_verify_locations = load_verify_locations


async def create(name, host):
    loaded.clear()
    config = client.Configuration(host=host)
    config.verify_ssl = "False" not in name
    began = time.process_time()
    api = client.ApiClient(config)
    took_ms = (time.process_time() - began) * 1000
    await api.close()
    print(f"{name}|{' and '.join(loaded) or 'none'}|{took_ms:.1f}")


async def main():
    for _ in range(2):  # the first one imports what it needs
        await create("http", "http://127.0.0.1:1")
    await create("http, verify_ssl=False", "http://127.0.0.1:1")
    await create("https", "https://127.0.0.1:1")


asyncio.run(main())
PY
"$work/venv/bin/python" "$work/clients.py" | tail -3 | tee "$work/loaded"
echo "with an empty SSL_CERT_FILE:"
SSL_CERT_FILE="$work/empty.pem" SSL_CERT_DIR="$work/none" "$work/venv/bin/python" "$work/clients.py" | tail -3 | tee "$work/unloaded"
grep -q "^http|the machine's|" "$work/loaded" && grep -q "^http, verify_ssl=False|the machine's|" "$work/loaded"
loaded=$(head -1 "$work/loaded" | cut -d '|' -f 3)
unloaded=$(head -1 "$work/unloaded" | cut -d '|' -f 3)
awk "BEGIN { exit $loaded < 5 }" || { echo "this machine has few authorities"; exit 2; }
awk "BEGIN { exit $unloaded * 5 >= $loaded }"
