# sparkpair: the two commands are `make demo` and `make test`.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: help demo test test-fast lint unit plays sources molecule lab-up lab-down lab-status clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OVERLAYS := $(VENV)/.overlays
# The scenarios benchmark, image, weights and head take many minutes more; name them to run them.
SCENARIOS ?= default overlay faults
export PATH := $(CURDIR)/$(BIN):$(PATH)
ifdef spark_lab_ranks
export SPARK_LAB_RANKS := $(spark_lab_ranks)
endif

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): requirements.txt pyproject.toml
	@command -v python3 >/dev/null || { echo "installing python3"; apt-get update -q && apt-get install -y -q python3; }
	@python3 scripts/bootstrap.py $(VENV)
	@touch $@

# Real torch and Triton's interpreter; --no-deps, because no kernel is compiled and no CUDA library is wanted.
$(OVERLAYS): tests/overlays/requirements.txt $(STAMP)
	@echo "installing tests/overlays/requirements.txt (torch and Triton, minutes the first time)"
	@python -m pip install --quiet --progress-bar off --no-deps -r tests/overlays/requirements.txt
	@touch $@

demo: lab-up  ## local pair, verify_tokens=3, and a completion on the screen
	@ansible-playbook -i inventories/lab playbooks/deploy.yml -e verify_tokens=3
	@python scripts/demo.py

test: test-fast plays sources molecule  ## all tests

test-fast: lint unit  ## everything without containers

lint: $(STAMP)  ## ruff, mypy, yamllint, ansible-lint
	ruff check .
	ruff format --check .
	mypy
	yamllint --strict .
	ansible-lint --offline

unit: $(STAMP)  ## pytest
	pytest -q -n 2 tests/unit tests/property

plays: $(STAMP)  ## roles in real ansible-playbook runs, without containers
	pytest -q -n 2 tests/plays

sources: $(OVERLAYS)  ## overlays against the real sources of every vLLM release
	pytest -q tests/overlays

# Reset, since molecule skips "prepare" where an earlier run was broken off, and the pair would not be clean.
molecule: lab-up  ## scenarios on the local pair, with the real engine
	@rm -f .cache/failed.txt
	@for scenario in $(SCENARIOS); do \
		echo "molecule test -s $$scenario"; \
		molecule reset -s $$scenario >/dev/null 2>&1; \
		molecule test -s $$scenario || { tail -n 200 .cache/failed.txt; echo "scenario $$scenario failed"; exit 1; }; \
	done

lab-up: $(STAMP)  ## make the local pair (spark_lab_ranks=N for another size)
	@python molecule/lab/lab.py up

lab-down:  ## remove the local pair
	@python molecule/lab/lab.py down

lab-status:  ## show the local pair
	@python molecule/lab/lab.py status

clean: lab-down  ## remove the local pair and the Python environment
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
