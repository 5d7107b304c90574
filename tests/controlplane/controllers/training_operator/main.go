// Package main runs the controllers of training-operator, without its webhooks, which only refuse, and their certificates,
// which it looks for in one folder of the machine.
package main

import (
	"flag"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	kubeflow "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	controllers "github.com/kubeflow/training-operator/pkg/controller.v1"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
)

func main() {
	probe := flag.String("health-probe-bind-address", "127.0.0.1:8081", "where /readyz is answered")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	// Defaults of its flags, without which kube-apiserver refuses the workers of a PyTorchJob.
	config.Config.PyTorchInitContainerImage = config.PyTorchInitContainerImageDefault
	config.Config.PyTorchInitContainerTemplateFile = config.PyTorchInitContainerTemplateFileDefault
	config.Config.PyTorchInitContainerMaxTries = config.PyTorchInitContainerMaxTriesDefault
	scheme := runtime.NewScheme()
	must(clientgoscheme.AddToScheme(scheme))
	must(kubeflow.AddToScheme(scheme))
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:                 scheme,
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: *probe,
	})
	must(err)
	must(manager.AddReadyzCheck("readyz", healthz.Ping))
	for kind, setUp := range controllers.SupportedSchemeReconciler {
		if kind != kubeflow.MPIJobKind { // that kind has another version and another controller
			must(setUp(manager, common.GenNonGangSchedulerSetupFunc(), 1))
		}
	}
	must(manager.Start(ctrl.SetupSignalHandler()))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
