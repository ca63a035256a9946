# `make` lists the targets. Everything is installed into .venv, from locks whose hashes are checked.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PIP := -m pip install --quiet --quiet --disable-pip-version-check
INSTALL := $(BIN)/python $(PIP)
CLIENTS := $(VENV)/clients
# A path and not a finder, which a folder of the same name, such as the checkout's own, would hide from scripts beside it.
PROJECT := $(INSTALL) --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
LOCK := --python-version 3.11 --universal --generate-hashes --no-header --no-annotate --quiet
# Tests wait more than they compute: one more than the cores of a small machine.
WORKERS ?= 3
ARGS ?=

# Containers often have it set; then each of the suite's many processes would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

# The first Python that is new enough and can make environments; one clear line when there is none.
define PYTHON
	python=; fault='Python 3.11 or newer is needed and none was found'; \
	for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	  command -v $$name >/dev/null || continue; \
	  $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	  fault="$$name cannot make environments: install its venv package (on Debian and Ubuntu: apt install python3-venv)"; \
	  $$name -c 'import ensurepip, venv' 2>/dev/null || continue; \
	  python=$$name; break; \
	done; \
	[ -n "$$python" ] || { echo "make: $$fault" >&2; exit 3; }
endef

# An installer that hears Ctrl-C ends in its own traceback; in the background it does not, and is ended here.
define QUIETLY
	trap 'kill $$child; wait $$child 2>/dev/null || :; exit 130' INT TERM; $(1) & child=$$!; wait $$child
endef

# A venv that does not run any more (its Python is gone, or the folder was moved) is made anew.
define ENVIRONMENT
	@$(PYTHON); \
	$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "making $(VENV) with $$python" >&2; \
	$(call QUIETLY,$$python -m venv --clear $(VENV)); }
endef

.PHONY: venv
venv: $(VENV)/.installed ## Install what the service needs

$(VENV)/.installed: requirements.lock pyproject.toml
	$(ENVIRONMENT)
	@echo "installing requirements.lock (about a minute)" >&2
	@$(call QUIETLY,$(INSTALL) --require-hashes --requirement requirements.lock)
	@$(call QUIETLY,$(PROJECT))
	@touch $@

.PHONY: venv-dev
venv-dev: $(VENV)/.installed-dev ## Install what tests and checks need, too

$(VENV)/.installed-dev: requirements-dev.lock requirements.lock pyproject.toml
	$(ENVIRONMENT)
	@echo "installing requirements-dev.lock (about a minute)" >&2
	@$(call QUIETLY,$(INSTALL) --require-hashes --requirement requirements-dev.lock)
	@$(call QUIETLY,$(PROJECT))
	@touch $(VENV)/.installed $@

.PHONY: demo
demo: venv ## Run the whole service on the sample questions
	@$(BIN)/aiforge demo $(ARGS)

.PHONY: test
test: venv-dev ## Run the test suite; what needs a missing program is skipped
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'not soak and not clients' $(ARGS)

.PHONY: check
check: venv-dev ## Lint, format, types, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: bench
bench: venv-dev ## Measure against the fake provider
	@$(BIN)/python -m tests.benchmarks $(ARGS)

.PHONY: settings
settings: venv-dev ## Write docs/SETTINGS.md from the classes that read the settings
	@mkdir -p docs
	@$(BIN)/python -P -m aiforge.cli.settings_table > docs/SETTINGS.md

.PHONY: chaos
chaos: venv-dev ## Kill workers at full length and count afterwards
	@$(BIN)/python -m tests.chaos $(ARGS)

.PHONY: baseline
baseline: venv-dev ## Strike plain Celery in the same way, and count
	@$(BIN)/python -m tests.chaos.baseline $(ARGS)

.PHONY: soak
soak: venv-dev ## Run the tests that take their time
	@$(BIN)/python -m pytest -m soak $(ARGS)

# Installers that check hashes do not take a pin for one with extras; the lock is complete, so nothing is resolved.
$(CLIENTS)/.installed: tests/clients/requirements.lock | $(VENV)/.installed-dev
	@$(BIN)/python -m venv --clear $(CLIENTS)
	@echo "installing tests/clients/requirements.lock (some minutes, 900 MB)" >&2
	@$(call QUIETLY,$(CLIENTS)/bin/python $(PIP) --no-deps --require-hashes \
	  --requirement tests/clients/requirements.lock)
	@touch $@

.PHONY: clients
clients: venv-dev $(CLIENTS)/.installed ## Run litellm and curator, in an environment of their own, against the service
	@$(BIN)/python -m pytest -m clients tests/clients $(ARGS)

.PHONY: lock
lock: venv-dev ## Resolve the dependencies anew into the locks
	@$(INSTALL) uv
	@$(BIN)/uv pip compile $(LOCK) --extra service --group build -o requirements.lock pyproject.toml
	@$(BIN)/uv pip compile $(LOCK) --extra service --extra openai --extra anthropic --extra ollama \
	  --extra fastapi --extra mcp --extra postgres --extra playground --extra workspace --extra s3 \
	  --group build --group dev -o requirements-dev.lock pyproject.toml
	@$(BIN)/uv pip compile $(LOCK) -o tests/clients/requirements.lock tests/clients/requirements.in

.PHONY: clean
clean: ## Remove the environment, builds and caches; data folders stay
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
