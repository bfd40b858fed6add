# gpu-runbook. `make` lists the targets; `make profile=runpod` compiles one profile.
# Variables: profile job without out force (what to compile), PYTHON (3.11 or newer), TORCH_INDEX (an index with CPU builds of torch).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
TORCH_INDEX ?=
PY := .venv/bin/python
export TORCH_INDEX PYTHON

# A misspelt variable would change nothing, and silently so.
known := profile job without out force PYTHON TORCH_INDEX
$(foreach one,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(one)))),$(if $(filter $(known) MAKE% -% GNUMAKEFLAGS SHELL,$(one)),,\
  $(error no such variable: $(one)=; these are: $(known)))))

ifdef profile
.DEFAULT_GOAL := compile
else
.DEFAULT_GOAL := help
endif

.PHONY: help compile all demo check test sweep bench trace clean

help: ## list the targets
	@echo 'make profile=NAME [job=NAME] [without=TIER,…] [out=FOLDER] [force=1]'
	@echo '               compile a profile of profiles/ with a job of jobs/ (default: demo); force=1 overwrites what was edited by hand'
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

compile: .venv/.compiler
	@$(PY) -m generator compile '$(or $(profile),$(error say which: make profile=NAME))' $(if $(job),--job '$(job)') $(if $(without),--without '$(without)') $(if $(out),--out '$(out)') $(if $(filter-out 0 no,$(force)),--force)

all: .venv/.compiler ## compile every profile with the demo job into out/
	@$(PY) -m generator compile --all

demo: .venv/.everything ## the whole life of a small sweep on this machine: killed, resumed, brought home, verified
	@tools/demo.sh

check: .venv/.everything node_modules/.package-lock.json ## validate, compare out/ with what would be compiled, lint everything
	@tools/check.sh

test: .venv/.everything node_modules/.package-lock.json ## all tests; installs the system packages they need where it may
	@tools/system_packages.sh
	@tools/test.sh

sweep: .venv/.everything node_modules/.package-lock.json ## the crash tests at every point, not at some: hours
	@tools/sweep.sh

bench: .venv/.everything ## measure: ratios against a named peer
	@tools/bench.sh

trace: .venv/.compiler ## docs/requirements.md against templates and tests: what is covered, what is open
	@$(PY) tools/trace.py

clean: ## remove build/ and caches; out/, .venv/ and node_modules/ stay
	@rm -rf build .pytest_cache .hypothesis *.egg-info
	@find generator tests tools examples templates -name __pycache__ -type d -prune -exec rm -rf {} +

# The first use sets up, the next ones find the stamp.
.venv/.compiler: pyproject.toml tools/setup.sh
	@tools/setup.sh compiler
.venv/.everything: pyproject.toml tools/setup.sh .venv/.compiler
	@tools/setup.sh everything
node_modules/.package-lock.json: package.json package-lock.json tools/setup.sh
	@tools/setup.sh npm
