PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/.core
STAMP := .venv/.installed
# SGLang, whose own loops our adapter is tested in. It lies apart and without what it depends on: tests import a few of
# its Python files, so the wheel of one platform serves all.
SGLANG := 0.5.23
HOSTS := .venv/hosts/sglang-$(SGLANG).dist-info

# Threads that spin for long slow down a busy machine: see docs/performance.md.
export GOMP_SPINCOUNT ?= 1000

.PHONY: setup demo docs test lint paper paper-full paper-fresh FORCE

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

setup: $(STAMP) $(HOSTS)

# What decoding needs; the demonstration waits for nothing else, and installs nothing outside .venv.
$(CORE): pyproject.toml constraints.txt
	@echo "Installing PyTorch and what decoding needs into .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(INSTALL) torch
	@$(INSTALL) -e .
	@touch $(CORE)

# A package of the system, unless its command is there: installed where that is possible, else asked for.
system = command -v $1 > /dev/null \
	|| { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && echo "Installing $2 for the whole system (apt-get)" \
	     && { apt-get install -qq -y $2 || { apt-get update -qq && apt-get install -qq -y $2; }; } > /dev/null 2>&1; } \
	|| echo "$2 is missing: install it (apt-get install $2) $3"

# All else: extras, tools of tests and pages, the sandbox for programs that a model writes, and a browser for tests.
$(STAMP): $(CORE)
	@echo "Installing the extras and the tools of tests and documentation into .venv"
	@$(INSTALL) -e ".[dev,docs,all]"
	@$(call system,bwrap,bubblewrap,to score answers that are programs)
	@$(call system,chromium-headless-shell,chromium-headless-shell,to test the page in a browser)
	@touch $(STAMP)

$(HOSTS): | $(CORE)
	@echo "Installing SGLang $(SGLANG) without its dependencies into .venv/hosts, for tests"
	@rm -rf .venv/hosts
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --target .venv/hosts \
		--only-binary :all: --platform manylinux_2_34_x86_64 --python-version 3.11 sglang==$(SGLANG)

demo: $(CORE)
	$(BIN)/python examples/demo.py

# The pages of docs/ as a site in site/. A warning is an error.
docs: setup
	$(BIN)/zensical build --clean --strict
	@echo "Open site/index.html, or with its search: $(BIN)/python -m http.server --directory site"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ty check src
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The experiments on the tiny suite. A run is named after its recipe, and its task where it does only one: main-sudoku.
# The main table comes first: the others reuse its rows. Several runs share the device, so that their times are left
# out of reports; speed has it for itself, when the others are done.
recipe = $(firstword $(subst -, ,$1))
task = $(patsubst $(call recipe,$1)-%,%,$(filter-out $(call recipe,$1),$1))
measure = OMP_NUM_THREADS=1 $(BIN)/unmask eval recipes/tiny/$(call recipe,$1).yaml $(addprefix --task ,$(call task,$1)) \
	$(if $(filter speed,$1),,--shared)
MAIN := $(addprefix main-,word_problems list_functions sudoku countdown-3 countdown-4)
LATER := $(MAIN:main-%=later-%)
STUDIES := $(LATER) curves-sudoku sensitivity ablation blocks regions lengths

# Coarse: a few items a cell, so the intervals are wide. Two processes of one thread each.
COARSE_ITEMS := 8
COARSE_ITEMS_speed := 4

paper: setup
	$(MAKE) --jobs 2 $(MAIN:%=runs/paper/%)
	$(MAKE) --jobs 2 $(STUDIES:%=runs/paper/%)
	$(MAKE) runs/paper/speed
	$(BIN)/unmask report runs/paper --out runs/paper-report

runs/paper/%: FORCE
	$(call measure,$*) --limit $(or $(COARSE_ITEMS_$(call recipe,$*)),$(COARSE_ITEMS)) --out $@

# As many items as the recipes ask for.
JOBS ?= $(shell nproc)

paper-full: setup
	$(MAKE) --jobs $(JOBS) $(MAIN:%=runs/paper-full/%)
	$(MAKE) --jobs $(JOBS) $(STUDIES:%=runs/paper-full/%) runs/paper-full/curves-word_problems
	$(MAKE) runs/paper-full/speed
	$(BIN)/unmask report runs/paper-full --out docs/results
	XZ_OPT=-9 tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --exclude=.lock -C runs -cJf docs/results/items.tar.xz paper-full

runs/paper-full/%: FORCE
	$(call measure,$*) --out $@

# The study of docs/joint.md, on items of its own.
FRESH := $(MAIN:main-%=fresh/joint-%) fresh/gaps sliding/sliding sliding/sliding16

paper-fresh: setup
	$(MAKE) --jobs $(JOBS) $(FRESH:%=runs/%)
	for part in fresh sliding; do \
		$(BIN)/unmask report runs/$$part --format markdown --format csv --format png --out docs/results/$$part; \
	done

runs/fresh/% runs/sliding/%: FORCE
	$(call measure,$*) --out $@
