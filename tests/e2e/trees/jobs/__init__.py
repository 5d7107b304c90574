"""Stories of Jobs and JobSets with their real controllers, on every supported version of Kubernetes."""
