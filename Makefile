# `make help` lists what there is. Every target sets up what it needs by itself.
PYTHON ?= python3
DEVICE ?= auto
PY = .venv/bin/python
# The same plans on another model, fewer problems, another device: make reproduce-table1 MODEL=smollm2_135m LIMIT=8 ENGINE=cpu
MODEL ?=
LIMIT ?=
ENGINE ?=
# default, paper or specforge, for every benchmark of the plan (docs/reproducing.md says which one answers what)
PROTOCOL ?=
RESULTS ?= results/runs
ARGS ?=
# gpu-check: tiny, llama31_8b, qwen3_8b or 8b (both; default with CUDA), and a folder that keeps its models
SIZE ?=
MODELS_DIR ?=
PLAN = $(if $(MODEL),model=$(MODEL)) $(if $(LIMIT),limit=$(LIMIT)) $(if $(ENGINE),engine.device=$(ENGINE)) \
       $(if $(PROTOCOL),benchmark.protocol=$(PROTOCOL))
SMALL = $(PLAN) results_dir=$(RESULTS) $(ARGS)
BENCH_RUNS = results/bench/runs
BENCH = $(PLAN) results_dir=$(BENCH_RUNS) $(ARGS)

.DEFAULT_GOAL := help
.PHONY: help setup doctor check format test test-slow test-report demo reproduce-all report wandb-dashboard bench-cpu gpu-check clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-zA-Z0-9_%-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Make .venv with all that is needed (DEVICE=auto|cpu|cuda); undo with rm -rf .venv
	@$(PYTHON) runners/bootstrap.py --device $(DEVICE)

doctor: setup  ## Say what this machine has and lacks, each with the remedy
	@$(PY) -m runners.doctor

check: setup  ## Lint, format and type checks
	@$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy

format: setup  ## Format the code
	@$(PY) -m ruff format . && $(PY) -m ruff check --fix .

test: setup  ## All default tests; starts the real SGLang server on the CPU
	@$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not browser" $(ARGS)

test-slow: setup  ## The long tests: memory over 20,000 steps, overhead, training
	@$(PY) -m pytest -m slow $(ARGS)

test-report: setup  ## The report in a real headless Chromium (Debian: apt-get install chromium)
	@$(PY) -m pytest -m browser tests/analysis $(ARGS)

demo: setup  ## Measure all methods on the demo model and problems, on any machine, in minutes
	@$(PY) run.py +sweep=demo $(SMALL)

reproduce-table%: setup  ## The paper's Table 1 to 5 (MODEL= LIMIT= ENGINE= for a smaller plan; PROTOCOL=paper for verdicts)
	@$(PY) run.py +sweep=table$* $(SMALL) && $(PY) -m analysis.tables table$* --results $(RESULTS) $(if $(MODEL),--model $(MODEL)) --paper

reproduce-all: setup  ## All five tables: 135 cells, run once each (PROTOCOL=paper for verdicts)
	@$(PY) run.py +sweep=all $(SMALL)

report: setup  ## Write results/report/index.html from what was measured
	@$(PY) -m analysis.report --results $(RESULTS)

wandb-dashboard: setup  ## Build a W&B workspace with the project's views (ARGS="--entity NAME")
	@$(PY) -m analysis.dashboard $(ARGS)

bench-cpu: setup  ## Step costs and speedups on this CPU, interleaved over repeats, beside plain torch; writes results/bench/*.md
	@$(PY) run.py +sweep=bench_cpu $(BENCH) && $(PY) run.py +sweep=bench_shapes $(BENCH)
	@$(PY) -m analysis.bench --results $(BENCH_RUNS) --out results/bench/cpu && $(PY) tests/bench/forward.py $(PLAN) $(ARGS)

gpu-check: setup  ## Does the plugin work on this CUDA device, and what does each step cost (SIZE=tiny ENGINE=cpu elsewhere)
	@$(PY) -m runners.gpu_check $(if $(SIZE),--size $(SIZE)) $(if $(MODELS_DIR),--models $(MODELS_DIR)) $(if $(ENGINE),engine.device=$(ENGINE)) $(ARGS)

clean:  ## Remove caches and builds; keeps results and .venv
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis outputs multirun
