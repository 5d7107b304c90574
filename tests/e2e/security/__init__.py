"""What the account of the extender and users can and cannot do on a real kube-apiserver with all of deploy/kubernetes."""
