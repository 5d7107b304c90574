"""End-to-end tests: a real kube-apiserver and kube-scheduler, nothing simulated but the kubelets."""
