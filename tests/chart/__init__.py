"""The chart as Helm renders it: `make chart` writes it, lints it, compares every value set with its golden file, and packs it.

    python -m tests.chart            # 1 if something differs
    python -m tests.chart --approve  # records what is rendered now

Helm is built from its Go module (tests/controlplane/helm) into the cache of the control plane.
"""
