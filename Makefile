# What a person and CI run. `make` lists the targets; each installs what it needs first, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

# `make test TESTS=tests/scheduler` runs a part; `make test PYTEST_ARGS="-x --lf"` passes options on.
TESTS ?=
PYTEST_ARGS ?=
VALUES ?=
# `make bench-peers BENCH_ARGS="--rounds 1 --peers openvino --workloads w2"` runs a part.
BENCH_ARGS ?=
GPU_CHECK_ARGS ?=
CPU ?=
SOAK_SECONDS ?= 3600
PYTEST := $(BIN)/python -m pytest -q

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# One pip at a time may work on .venv, also under `make -j`.
.NOTPARALLEL:
.PHONY: help setup demo test test-long test-all gpu-check soak mutation bench-peers check format protos check-protos docs chart constraints clean distclean

help: ## list the targets
	@echo "Blockyard. Targets:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) \
		| while IFS='|' read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done
	@echo "Another interpreter: make setup PYTHON=python3.12"

setup: $(STAMPS)/run $(STAMPS)/model $(STAMPS)/native ## make .venv, install Blockyard, fetch the default model (once)

demo: setup ## start a local cluster, ask the default model a question, show the books, stop
	$(BIN)/blockyard demo

test: $(STAMPS)/test setup ## run the test suite, long tests left out
	$(PYTEST) -m "not slow" $(PYTEST_ARGS) $(TESTS)

test-long: $(STAMPS)/test setup ## run the long tests that `make test` leaves out
	$(PYTEST) -m slow $(PYTEST_ARGS) $(TESTS)

test-all: test test-long ## run every test

# A card needs nothing of Blockyard installed: torch, cupy, numpy and transformers, in .venv or in PYTHON.
# CPU=1 rehearses: the kernels in the emulation, tiny sizes. GPU_CHECK_ARGS="decode prefill" runs parts.
gpu-check: $(if $(CPU),$(STAMPS)/test) ## check and measure every kernel on this GPU, write benchmarks/results/
	$(if $(wildcard $(BIN)/python)$(CPU),$(BIN)/python,$(PYTHON)) benchmarks/gpu/check.py $(if $(CPU),--cpu) $(GPU_CHECK_ARGS)

# Prints how to repeat what it finds. SOAK_SECONDS=60 makes it a minute.
soak: $(STAMPS)/test ## do anything in any order to the scheduler, at random, for an hour
	BLOCKYARD_SOAK_SECONDS=$(SOAK_SECONDS) $(PYTEST) -m soak $(PYTEST_ARGS) tests/scheduler

mutation: $(STAMPS)/test ## plant faults in the scheduler and show that the tests find each
	$(BIN)/python benchmarks/mutation_scheduler.py

# Peers go into build/peers, each with a virtual environment of its own: hours, the first time.
bench-peers: $(STAMPS)/dev $(STAMPS)/model ## measure Blockyard and other servers on this CPU in turns
	$(BIN)/python benchmarks/peers/compare.py $(BENCH_ARGS)

check: $(STAMPS)/dev check-protos ## lint, format, types, generated stubs, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) tests/packaging/test_imports.py tests/packaging/test_tree.py

format: $(STAMPS)/dev ## put the code into the common format, fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

protos: $(STAMPS)/dev ## generate the stubs in protos/ anew
	sh protos/generate.sh $(BIN)/python

# Generates into a folder beside the tree and compares, so that checking changes nothing.
check-protos: $(STAMPS)/dev
	@rm -rf build/protos && mkdir -p build/protos
	@sh protos/generate.sh $(BIN)/python build/protos
	@for stub in protos/*_pb2*; do \
		[ ! -e "$$stub" ] || [ -e "build/protos/blockyard/$$stub" ] \
			|| { echo "$$stub belongs to no .proto file: delete it" >&2; exit 1; }; \
	done
	@for stub in $$(cd build/protos && find . -name '*_pb2*'); do \
		diff -u "$${stub#./blockyard/}" "build/protos/$$stub" \
			|| { echo "protos/ differs from its .proto files: run 'make protos' and commit" >&2; exit 1; }; \
	done
	@echo "protos: stubs match"

# VALUES=file.yaml takes values; needs neither Helm nor a cluster.
chart: $(STAMPS)/test ## print what the Helm chart renders to
	@$(BIN)/python helm/render.py $(VALUES)

docs: $(STAMPS)/dev ## build the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The torch pin is moved by hand alone: it decides which builds a machine can choose from.
constraints: $(STAMPS)/venv ## resolve the newest versions of .[dev] into constraints.txt
	@mkdir -p build && grep '^torch==' constraints.txt > build/torch.txt
	$(BIN)/python -m pip install --dry-run --ignore-installed -c build/torch.txt \
		--report build/resolved.json '.[dev]'
	$(BIN)/python -c "$$WRITE_CONSTRAINTS" build/resolved.json > build/constraints.txt
	mv build/constraints.txt constraints.txt

clean: ## delete caches and build output
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## also delete .venv; fetched models stay in their cache
	rm -rf $(VENV)

$(STAMPS)/venv:
	@command -v $(PYTHON) >/dev/null || { \
		echo "$(PYTHON) was not found. Install it (Debian, Ubuntu: apt install python3 python3-venv)" >&2; \
		echo "or name another interpreter: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Blockyard needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1)." >&2; \
		echo "Install a newer one and name it: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments: its venv module is missing." >&2; \
		echo "Install it (Debian, Ubuntu: apt install python3-venv), then repeat the command." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/run: pyproject.toml constraints.txt | $(STAMPS)/venv
	$(PIP_INSTALL) -e .
	@touch $@

# The larger extras bring what the smaller ones need, so they stamp those too.
$(STAMPS)/test: pyproject.toml constraints.txt | $(STAMPS)/venv
	$(PIP_INSTALL) -e '.[kernels,test]'
	@touch $(STAMPS)/run $@

$(STAMPS)/dev: pyproject.toml constraints.txt | $(STAMPS)/venv
	$(PIP_INSTALL) -e '.[dev]'
	@touch $(STAMPS)/run $(STAMPS)/test $@

$(STAMPS)/model: | $(STAMPS)/run
	$(BIN)/blockyard model fetch
	@touch $@

# Builds the native code for this CPU, where a compiler is, and says what is in use.
$(STAMPS)/native: | $(STAMPS)/run
	$(BIN)/blockyard doctor
	@touch $@

# pip's report holds every package it would install. Left out: a local build tag such as +cpu, which
# is no part of a pin, and the CUDA libraries, which a CUDA build of torch names exactly itself.
define WRITE_CONSTRAINTS
import json, sys
print("# Exact versions Blockyard is tested with: make constraints resolves .[dev] into this file.")
with open(sys.argv[1]) as report:
    found = [item["metadata"] for item in json.load(report)["install"]]
pins = {item["name"]: item["version"].partition("+")[0] for item in found}
for name in sorted(pins, key=str.lower):
    if not name.startswith(("blockyard", "cuda-", "nvidia-", "triton")):
        print(f"{name}=={pins[name]}")
endef
export WRITE_CONSTRAINTS
