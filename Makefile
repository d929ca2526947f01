# sparkpair: the two commands are `make demo` and `make test`.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: help demo test test-fast lint unit sources molecule lab-up lab-down lab-status clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PATH := $(CURDIR)/$(BIN):$(PATH)
ifdef spark_lab_ranks
export SPARK_LAB_RANKS := $(spark_lab_ranks)
endif

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): requirements.txt pyproject.toml $(wildcard tests/overlays/requirements.txt)
	@command -v python3 >/dev/null || { echo "installing python3"; apt-get update -q && apt-get install -y -q python3; }
	@python3 scripts/bootstrap.py $(VENV)
	@touch $@

demo: lab-up  ## local pair, verify_tokens=3, and a completion on the screen
	@ansible-playbook -i inventories/lab playbooks/deploy.yml -e verify_tokens=3
	@python scripts/demo.py

test: test-fast molecule  ## all tests

test-fast: lint unit  ## everything without containers

lint: $(STAMP)  ## ruff, mypy, yamllint, ansible-lint
	ruff check .
	ruff format --check .
	mypy
	yamllint --strict .
	ansible-lint --offline

unit: $(STAMP)  ## pytest
	pytest -q -m "not lab and not sources"

sources: $(STAMP)  ## overlays against the real sources of every vLLM release
	pytest -q -m sources

molecule: lab-up  ## scenarios on the local pair, with the real engine
	molecule test -s default
	molecule test -s overlay

lab-up: $(STAMP)  ## make the local pair (spark_lab_ranks=N for another size)
	@python molecule/lab/lab.py up

lab-down:  ## remove the local pair
	@python molecule/lab/lab.py down

lab-status:  ## show the local pair
	@python molecule/lab/lab.py status

clean: lab-down  ## remove the local pair and the Python environment
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
