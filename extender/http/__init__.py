"""aiohttp: the verbs of kube-scheduler, the read API, health, metrics and the page; imports everything below the composition root."""
