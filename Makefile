# `make run` trains on Spark and `make test` tests, from a fresh clone: both set up .venv first.

SHELL  := /bin/bash
BIN    := $(CURDIR)/.venv/bin
MASTER ?= local[2]
CONF   ?= conf/digits.toml
ARGS   ?=

# A Spark, an interpreter or a notebook set up for other work must not leak in.
SPARK_SUBMIT = env -u SPARK_HOME -u PYSPARK_DRIVER_PYTHON -u PYSPARK_DRIVER_PYTHON_OPTS \
    PYSPARK_PYTHON=$(BIN)/python $(if $(filter local%,$(MASTER)),SPARK_LOCAL_IP=127.0.0.1) \
    $(BIN)/spark-submit --master '$(MASTER)' --properties-file conf/spark-defaults.conf \
    --driver-java-options -Dlog4j2.configurationFile=file:$(CURDIR)/conf/log4j2.properties

.PHONY: help env run test check format bench dist clean

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/\1\t\2/' | expand -t 10

env: ## .venv with all packages, and Java 17 or newer
	@bash scripts/make_env.sh
	@bash scripts/ensure_java.sh

run: env ## train: CONF=conf/digits.toml, MASTER=local[2], ARGS="--set training.epochs=5"
	@$(SPARK_SUBMIT) jobs/train.py $(CONF) $(ARGS)

test: env ## all tests, in two processes: ARGS="-k name" for some, ARGS="-n 0" in one
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

check: env ## style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: env ## rewrite the sources in the project's style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: env ## all comparisons; `.venv/bin/pip install -e .[bench]` brings the rivals
	@failed=; for script in bench/[!_]*.py; do \
	    echo "== $$script"; $(BIN)/python "$$script" $(ARGS) || failed="$$failed $$script"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

dist: env ## dist/*.whl, and dist/sparkdl.zip for spark-submit --py-files
	@rm -rf dist build
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@rm -rf build
	@cp dist/sparkdl_train-*.whl dist/sparkdl.zip  # a pure wheel is an importable archive
	@ls -l dist

clean: ## remove what builds, tests and runs leave behind; .venv stays
	@rm -rf build dist out *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache spark-warehouse
	@find . -name .venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
