"""aiohttp: the four verbs of kube-scheduler, health, metrics and the read API."""
