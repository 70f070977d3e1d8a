# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch first and alone: the CPU build serves where the machine's index has one.
TORCH := torch==2.13.0

.PHONY: demo test test-fast test-long lint gallery clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade pip

$(VENV)/.light: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -qq --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev,data]'
	@touch $@ $(VENV)/.light

$(VENV)/.train: pyproject.toml | $(VENV)/.dev
	@echo "installing the trainers' own code (a few minutes, once)"
	$(BIN)/python -m pip install -qq --disable-pip-version-check $(TORCH)
	DS_BUILD_OPS=0 $(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev,data,train,deepspeed]'
	@touch $@

demo: $(VENV)/.light  ## a real project, written from a model, data and a box
	rm -rf demo && $(BIN)/recipegen new demo --model meta-llama/Llama-3.1-8B-Instruct \
	  --dataset examples/support-chat.jsonl --hardware kentino-8x-rtx-5090
	@echo && ls demo

test: $(VENV)/.train  ## everything a change must pass
	$(BIN)/recipegen gallery build --check
	$(BIN)/python -m pytest -m "not long" --durations=15
	@echo "left to make test-long:" && $(BIN)/python -m pytest -m long --collect-only -q | tail -n 1

test-fast: $(VENV)/.dev  ## no trainer stack, under a minute
	$(BIN)/python -m pytest -m "not stack and not run and not long"

test-long: $(VENV)/.train  ## DeepSpeed training, long fuzzing, the rest
	$(BIN)/python -m pytest -m long --durations=15

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

gallery: $(VENV)/.light  ## rewrite recipes/ from recipes/gallery.yaml
	$(BIN)/recipegen gallery build

clean:
	rm -rf $(VENV) demo dist build
