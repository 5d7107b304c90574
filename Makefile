# Needs only Python 3.11+ (with venv) and make; everything else is installed into .venv.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python
# Tests start many processes; without bytecode files each of them would compile all of extender anew (0.5 s of CPU).
unexport PYTHONDONTWRITEBYTECODE
# Stories wait more than they compute. Each worker has a PostgreSQL of its own, and for e2e, which computes more, a control plane.
WORKERS ?= $(if $(filter e2e,$(MAKECMDGOALS)),2,3)
CONTAINERS ?= docker
IMAGE ?= gang-extender:0.1.0
BASE ?=
# More for pytest: make test PYTEST_ARGS="-p randomly" shuffles the tests, PYTEST_ARGS="-k pruning" chooses some.
PYTEST_ARGS ?=
# K/N: of the tests that only make test-full runs, or make e2e leaves out, the K-th of N parts.
PART ?=
PYTEST := $(RUN) -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)
# make house, a part of make check, runs these two, and make e2e the folder: other targets do not even import them.
HOUSE := tests/test_house.py tests/integration/test_public_surface.py
ELSEWHERE := $(addprefix --ignore=,tests/e2e $(HOUSE))

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full simulate approve e2e compose chart docs check fmt lint types arch house licenses audit bench bench-quick bench-check long lock sbom image release revision clean

help: ## Show what there is
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gang-extender needs Python 3.11 or newer; set PYTHON=python3.x" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python has no venv here; install it (Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(VENV)/.installed ## Make the virtual environment with the pinned dependencies

demo: setup ## Show it: a tree placed, the service killed and restarted, the history read from the log
	@$(RUN) deploy/demo/play.py

test: setup ## What needs only Python, but for the longest stories: in minutes (see test-full)
	$(PYTEST) $(ELSEWHERE) -m 'not e2e and not bench and not long and not full' --durations=15

test-full: setup ## All of make test with the tests marked full and all hypothesis examples; PART=2/4: a quarter of what make test leaves out
	HYPOTHESIS_PROFILE=full $(PYTEST) $(ELSEWHERE) -m '$(if $(PART),(full or hypothesis) and )not e2e and not bench and not long' $(if $(PART),--part $(PART)) --durations=15

simulate: setup ## Faults by seed in virtual time: make simulate [SEEDS=200] [FIRST=0]; DEFECTS=1: how many planted defects the seeds find
	$(RUN) -m tests.support.faults --seeds $(or $(SEEDS),$(if $(DEFECTS),500,200)) --first $(or $(FIRST),0) $(if $(DEFECTS),--defects)

approve: setup ## Approve the public surface as it is now: writes tests/golden/public_surface, whose diff is reviewed
	$(RUN) -m tests.public_surface

e2e: setup ## The same product against a real kube-apiserver and kube-scheduler; PART=2/4: with a quarter of the tests marked full, PART=1/1: with all
	$(RUN) -m tests.controlplane.build 1.37 1.36 controllers
	GX_TEST_E2E=required $(PYTEST) tests/e2e -m 'e2e and not long$(if $(PART),, and not full)' $(if $(PART),--part $(PART)) --durations=30

compose: setup ## docker-compose.yml as it is shipped, in containers (podman, root) on stand-ins of its images
	$(RUN) -m tests.compose

chart: setup ## Write chart and kustomizations from deploy/kubernetes; lint, render, compare, pack (builds Helm, once); APPROVE=1: record what is rendered
	$(RUN) -m tests.chart $(if $(APPROVE),--approve)

docs: setup ## The documentation as a site in .docs, with the reference made from the code; broken links are errors
	$(RUN) -m sphinx -q -j auto -W --keep-going -b html -c docs/site . .docs

check: setup lint types arch house docs licenses ## Style, types, layers of imports, names, words, folder sizes, the public surface, the documentation, licenses
	@$(RUN) -m deploy.audit --report

fmt: setup ## Format the code
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: setup
	$(BIN)/mypy

arch: setup
	$(BIN)/lint-imports

house: setup
	$(RUN) -m pytest -q -n 0 $(HOUSE)

licenses: setup ## Whether every package that a release installs has an allowed license
	$(RUN) -m deploy.licenses

audit: setup ## Known vulnerabilities of those packages (pip-audit); make check only prints them
	$(RUN) -m deploy.audit

bench: setup ## Every number beside its baseline: make bench [NAMES="gang verbs"] [ROUNDS=5] [ONLY=pattern] [RESUME=1] [QUICK=1] [RECORD=1] [TRACE=1] [KUBERNETES=1.36]
	$(RUN) -m tests.bench $(NAMES) --rounds $(or $(ROUNDS),5) $(if $(ONLY),--only '$(ONLY)') $(if $(RESUME),--resume) $(if $(QUICK),--quick) $(if $(RECORD),--record) $(if $(TRACE),--trace) $(if $(KUBERNETES),--kubernetes $(KUBERNETES))

bench-quick: setup ## The table of tests/bench/RESULTS.md, with goals and verdicts: make bench-quick [ROUNDS=3] [ONLY=rows] [RESUME=1] [RECORD=1]
	$(RUN) -m tests.bench quick --rounds $(or $(ROUNDS),3) $(if $(ONLY),--only '$(ONLY)') $(if $(RESUME),--resume) $(if $(QUICK),--quick) $(if $(RECORD),--record)

bench-check: setup ## What of the last run got worse than recorded by more than the spread
	$(RUN) -m tests.bench $(NAMES) --check

long: setup ## Soaks, large sizes and faults by 10,000 seeds, by hand
	$(RUN) -m pytest -m long --timeout 3600 $(PYTEST_ARGS)
	$(MAKE) simulate SEEDS=10000

revision: setup ## New migration: make revision m="add something"
	$(BIN)/alembic revision -m "$(m)"

lock: ## Renew requirements.lock from pyproject.toml
	$(BIN)/pip-compile --quiet --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --allow-unsafe --extra plan --extra server --extra embedded --extra png --extra dev --output-file requirements.lock pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(RUN) -m deploy.sbom

sbom: setup ## Write deploy/sbom.cdx.json: the Python packages of the image (CycloneDX)
	$(RUN) -m deploy.sbom

# No digest is in this repository: which base images are good is known where they are pulled.
image: ## Build the image of a release: make image BASE=python:3.12.12-slim-bookworm@sha256:... [IMAGE=gang-extender:0.1.0]
	@$(if $(BASE),,echo "BASE is not set: name the base image with its digest, NAME@sha256:..." >&2; exit 1)
	$(CONTAINERS) build --file deploy/Dockerfile --build-arg RELEASE=true --build-arg BASE='$(BASE)' --tag $(IMAGE) .

# IMAGE names the image in make image; here it can only be left out.
release: setup ## All files of a release in dist/, the same bytes twice: make release BASE=NAME@sha256:... (without: on a stand-in) | IMAGE=none [URL=https://...] [REGISTRY=registry.example.com/team: push image and chart]
	$(RUN) -m $(if $(filter none,$(IMAGE)),deploy.release --no-image,$(if $(BASE),deploy.release --base '$(BASE)',tests.compose.release)) $(if $(URL),--url '$(URL)') $(if $(REGISTRY),--registry '$(REGISTRY)')

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .demo .docs docs/reference/generated
