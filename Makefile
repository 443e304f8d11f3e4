# Every target makes the virtual environment first, if it is not there or not up to date.

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
ALBERT := $(VENV)/bin/albert
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
ENGINES := .engines
UV := build/uv/bin/uv

RECIPE ?= tiny
WORK ?= $(or $(ALBERT_WORK),work)
SOURCE ?=
SET ?=
MODEL ?= models:/albert-tiny@champion
TASKS ?=
SEEDS ?=
CORPUS ?=
ARTIFACTS ?=
NAME ?=
ARGS ?=
TORCH ?= auto
# As one word of the shell, whatever is in it.
quoted = '$(subst ','\'',$(1))'

FLOW_OPTIONS = --recipe $(call quoted,$(RECIPE)) --work $(call quoted,$(WORK)) \
	$(if $(SOURCE),--source $(call quoted,$(SOURCE))) $(foreach setting,$(SET),--set $(call quoted,$(setting)))
SERVED = $(if $(filter-out file,$(origin RECIPE)),--recipe $(call quoted,$(RECIPE))) $(if $(SOURCE),--source $(call quoted,$(SOURCE))) $(if $(TASKS),--task-folder $(call quoted,$(TASKS)))
DATA_BENCHMARKS := data_pipeline text_functions
BENCHMARKS := $(DATA_BENCHMARKS) pretraining finetuning statistics

# Tests start hundreds of processes: each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install install-dev lock demo refresh evaluate models rollback plan serve production test test-long test-engines check format bench bench-data \
	bench-train bench-learning bench-loader bench-finetune bench-tracking bench-gpu clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24
	@echo
	@echo "  Variables: RECIPE=$(RECIPE) WORK=$(WORK) SOURCE=<file, folder, glob or URI>"
	@echo "             SET='section.field=value ...' ARGS=<for pytest> PYTHON=$(PYTHON)"

install: $(READY) ## the environment, as requirements.lock has it; TORCH=cpu, cuda or none, else by what is here

install-dev: $(READY_DEV) ## the same with what tests and checks need; targets that need it call it

lock: $(UV) ## requirements.lock anew from pyproject.toml; ARGS='--upgrade-package torch' or --upgrade for newer versions
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --annotation-style line \
	  --custom-compile-command "make lock" --extra all --extra dev --extra gcs $(ARGS) pyproject.toml --output-file requirements.lock

demo: $(READY) ## raw text to a registered model; SOURCE=... for your own text
	@$(ALBERT) pretrain $(FLOW_OPTIONS)

refresh: $(READY) ## raw text to clean corpus, vocabulary and examples only
	@$(ALBERT) refresh $(FLOW_OPTIONS)

evaluate: $(READY) ## a model on all tasks in a folder; MODEL=... TASKS=<folder> SEEDS=3
	@$(ALBERT) evaluate $(call quoted,$(MODEL)) --work $(call quoted,$(WORK)) $(if $(filter-out file,$(origin RECIPE)),--recipe $(call quoted,$(RECIPE))) \
	  $(if $(TASKS),--task-folder $(call quoted,$(TASKS))) $(if $(SEEDS),--seeds $(call quoted,$(SEEDS))) \
	  $(if $(CORPUS),--corpus $(call quoted,$(CORPUS))) $(foreach setting,$(SET),--set $(call quoted,$(setting))) $(ARGS)

models: $(READY) ## the registry's models; NAME=albert-tiny for its versions, and why they are champion or not
	@$(ALBERT) models --work $(call quoted,$(WORK)) $(foreach name,$(NAME),$(call quoted,$(name)))

rollback: $(READY) ## the previous champion again; NAME=albert-tiny ARGS='--to 3 --reason "..."'
	@$(ALBERT) rollback --work $(call quoted,$(WORK)) $(call quoted,$(NAME)) $(ARGS)

plan: $(READY) ## what a run will take in memory, hours and cost; ARGS='--hardware l4'
	@$(ALBERT) plan --recipe $(call quoted,$(RECIPE)) $(foreach setting,$(SET),--set $(call quoted,$(setting))) $(ARGS)

serve: $(READY) ## Prefect, MLflow and a worker on this machine, until Ctrl-C; RECIPE= SOURCE= TASKS= for its deployments
	@exec $(ALBERT) serve --work $(call quoted,$(WORK)) $(SERVED) $(ARGS)

production: $(READY) ## the same for a team: Postgres, S3, two workers; ARTIFACTS=s3://bucket/path
	@exec $(ALBERT) production --work $(call quoted,$(WORK)) $(SERVED) $(if $(ARTIFACTS),--artifacts $(call quoted,$(ARTIFACTS))) $(ARGS)

test: $(READY_DEV) ## all tests but the long ones; ARGS=tests/flows for some
	$(PY) -m pytest -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

test-long: $(READY_DEV) ## tests of minutes with real servers (Postgres, S3, MLflow, Prefect), and of kills
	$(PY) -m pytest -m long $(ARGS)

test-engines: $(READY_DEV) $(ENGINES)/.ready ## text stages on real Flink, Spark and Prism, some of which die; ALBERT_ENGINES=<folder>
	$(PY) -m pytest -m engines -rs $(ARGS) tests/engines

check: $(READY_DEV) ## format, lint, types, who may import whom, docs and their links
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict --site-dir build/site

format: $(READY_DEV) ## put the code into its format
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: $(READY_DEV) ## all benchmarks but bench-gpu and bench-learning
	@for name in $(BENCHMARKS); do echo "== $$name"; $(PY) -m benchmarks.$$name $(ARGS) || exit 1; done

bench-data: $(READY_DEV) ## the benchmarks of text to shards alone
	@for name in $(DATA_BENCHMARKS); do echo "== $$name"; $(PY) -m benchmarks.$$name $(ARGS) || exit 1; done

bench-train: $(READY_DEV) ## an update against Hugging Face's
	$(PY) -m benchmarks.pretraining --only training_step $(ARGS)

bench-learning: $(READY_DEV) ## what a model learns in a CPU second, beside Hugging Face's code; ARGS='--examples <folder> --ours tiny --peers adamw lamb'
	$(PY) -m benchmarks.learning $(ARGS)

bench-tracking: $(READY_DEV) ## what tracking and checkpoints take of a run
	$(PY) -m benchmarks.pretraining --only tracking $(ARGS)

bench-gpu: $(READY_DEV) ## a GPU: agreement with the CPU, bits, kernels, speed, memory, Hugging Face's beside; one page
	$(PY) -m benchmarks.gpu_training $(ARGS)

bench-loader: $(READY_DEV) ## batches against Hugging Face's
	$(PY) -m benchmarks.pretraining --only loader $(ARGS)

bench-finetune: $(READY_DEV) ## fine-tuning and scoring against Hugging Face's Trainer
	$(PY) -m benchmarks.finetuning --only finetuning $(ARGS)

clean: ## remove caches and the virtual environment; results in WORK stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(ENGINES)/.ready:
	$(PYTHON) -m venv $(ENGINES)/flink && $(ENGINES)/flink/bin/pip install -qq apache-flink-libraries==1.19.3
	$(PYTHON) -m venv $(ENGINES)/spark && $(ENGINES)/spark/bin/pip install -qq pyspark==3.5.1
	@touch $@

$(UV):
	$(PYTHON) -m venv build/uv && build/uv/bin/pip install -qq uv==0.13.9

$(READY): pyproject.toml requirements.lock infra/install.py infra/torch_cpu.txt
	@test -x $(PY) || $(PYTHON) -c 'import sys; sys.exit("Python 3.11 to 3.13 is needed, this is " + sys.version.split()[0] + "; give PYTHON=...") if not (3, 11) <= sys.version_info < (3, 14) else None'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing the pinned versions into $(VENV); the first time takes some minutes"
	@$(PY) infra/install.py --no-compile --torch $(call quoted,$(TORCH)) all production s3
	@# Bytecode of the modules in use only: the rest is 0.3 GB.
	@$(PY) -c 'import importlib, pkgutil; [importlib.import_module(module.name) for name in ("albert_core", "pipelines", "flows") for module in pkgutil.walk_packages(importlib.import_module(name).__path__, name + ".")]' 2>/dev/null || test $(call quoted,$(TORCH)) = none
	@touch $@

$(READY_DEV): $(READY)
	@echo "installing what tests and checks need beside it"
	@$(PY) infra/install.py --torch $(call quoted,$(TORCH)) all dev
	@touch $@
