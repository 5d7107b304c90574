// Package main runs the controller of mpi-operator, without its election and its health check, which listens on port 8080
// of all addresses.
package main

import (
	"context"
	"flag"
	"net/http"
	"os/signal"
	"syscall"

	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeflow/mpi-operator/cmd/mpi-operator/app/options"
	kubeflow "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned"
	kubeflowscheme "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned/scheme"
	"github.com/kubeflow/mpi-operator/pkg/client/informers/externalversions"
	"github.com/kubeflow/mpi-operator/pkg/controller"
)

func main() {
	probe := flag.String("health-probe-bind-address", "127.0.0.1:8081", "where /readyz is answered")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	rules := clientcmd.NewDefaultClientConfigLoadingRules() // reads KUBECONFIG
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	must(err)
	config.QPS, config.Burst = 50, 100
	must(kubeflowscheme.AddToScheme(scheme.Scheme)) // for Events about its kind
	built, own := kubernetes.NewForConfigOrDie(config), kubeflow.NewForConfigOrDie(config)
	informers := kubeinformers.NewSharedInformerFactory(built, 0)
	jobs := externalversions.NewSharedInformerFactory(own, 0)
	core := informers.Core().V1()
	operator, err := controller.NewMPIJobController(
		ctx, built, own, nil, nil,
		core.ConfigMaps(), core.Secrets(), core.Services(), informers.Batch().V1().Jobs(), core.Pods(),
		informers.Scheduling().V1().PriorityClasses(), jobs.Kubeflow().V2beta1().MPIJobs(),
		&options.ServerOption{ControllerRateLimit: 10, ControllerBurst: 100},
	)
	must(err)
	informers.Start(ctx.Done())
	jobs.Start(ctx.Done())
	http.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	go func() { must(http.ListenAndServe(*probe, nil)) }()
	must(operator.Run(2, ctx.Done()))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
