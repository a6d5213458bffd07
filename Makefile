# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
# `make install` sets everything up; `make help` lists the rest.

# The virtual environment, the minor versions of TensorFlow and Keras in it, and what creates it.
VENV ?= .venv
TF ?= 2.21
KERAS ?= 3.15
PYTHON ?= python3
# Arguments for pytest, such as PYTEST_ARGS="-k parity -x".
PYTEST_ARGS ?=
# Test files that run side by side: ranks that wait for each other leave a core idle.
PYTEST_WORKERS ?= 2

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := install
.DELETE_ON_ERROR:

PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
# One stamp per pair of versions: another TF=... installs that version into the same environment.
DEPENDENCIES := $(VENV)/.tfdear/dependencies-tf$(TF)-keras$(KERAS)
TOOLS := $(VENV)/.tfdear/tools
DOCS_TOOLS := $(VENV)/.tfdear/docs-tools
PACKAGE := $(VENV)/.tfdear/package
BAZEL ?= $(shell command -v bazel || command -v bazelisk || echo bazel)
# Where a plain `bazel` looks by itself nothing is said, so that both share one cache.
ifneq ($(abspath $(VENV)),$(abspath .venv))
export TFDEAR_PYTHON := $(abspath $(VENV))/bin/python
endif
CC_FILES = $(shell find custom_ops tests/cc -name '*.h' -o -name '*.cc')
# CUDA: machine code for these architectures, and PTX of the last one for those to come.
NVCC ?= nvcc
CUDA_ARCHITECTURES ?= 80 90
NVCC_FLAGS = -x cu -std=c++17 -O3 -I. -Xcompiler -Wall $(foreach a,$(CUDA_ARCHITECTURES), \
    -gencode arch=compute_$(a),code=sm_$(a)) -gencode \
    arch=compute_$(lastword $(CUDA_ARCHITECTURES)),code=compute_$(lastword $(CUDA_ARCHITECTURES))

.PHONY: install docs environment system system-tests system-fuzz dist train text test test-cc test-python \
    test-long lint locks format sanitize fuzz cuda cuda-ops nvcc clean help

install: system $(DEPENDENCIES)  ## set everything up: system packages, environment, library, package
	$(BAZEL) build //...
	@$(MAKE) --no-print-directory $(PACKAGE)
	@# Also after the first time: Bazel decides whether the library is still the right one.
	@$(VENV)/bin/python -W ignore setup.py -q build_ext --inplace
	@# For benchmarks; wheels do without.
	@install "$$($(BAZEL) info bazel-bin 2>/dev/null)/custom_ops/benchmarks/_tfdear_benchmarks.so" tfdear/

# All of Python that is not ours.
environment: $(DEPENDENCIES) $(TOOLS)

system:
	@custom_ops/bazel/system_packages.sh $(PYTHON)

# The launchers of others that tests start, and what they mount files with.
system-tests:
	@custom_ops/bazel/system_packages.sh $(PYTHON) tests

# Clang, which has a fuzzer.
system-fuzz:
	@custom_ops/bazel/system_packages.sh $(PYTHON) fuzz

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(DEPENDENCIES): setup.cfg | $(VENV)/bin/python
	mkdir -p $(@D) && rm -f $(@D)/dependencies-* $(PACKAGE)
	$(VENV)/bin/python -c 'import configparser; c = configparser.ConfigParser(); c.read("setup.cfg"); \
	    extras = c["options.extras_require"]; print("setuptools>=70.1", c["options"]["install_requires"], \
	    *map(extras.get, ("doctor", "examples", "plot", "text")), sep="\n")' > $(@D)/requirements.txt
	$(PIP) install -q "tensorflow~=$(TF).0" "keras~=$(KERAS).0" -r $(@D)/requirements.txt
	touch $@

# Editable: the library lies beside the Python files in the source tree.
$(PACKAGE): setup.cfg setup.py pyproject.toml
	$(PIP) install -q --no-build-isolation --no-deps --editable .
	touch $@

$(TOOLS): setup.cfg | $(VENV)/bin/python
	mkdir -p $(@D)
	$(VENV)/bin/python -c 'import configparser; c = configparser.ConfigParser(); c.read("setup.cfg"); \
	    print(c["options.extras_require"]["dev"])' > $(@D)/tools.txt
	$(PIP) install -q -r $(@D)/tools.txt
	touch $@

dist: system $(TOOLS)  ## build the source distribution and the wheel
	$(VENV)/bin/python -m build

$(DOCS_TOOLS): setup.cfg | $(VENV)/bin/python
	mkdir -p $(@D)
	$(VENV)/bin/python -c 'import configparser; c = configparser.ConfigParser(); c.read("setup.cfg"); \
	    print(c["options.extras_require"]["docs"])' > $(@D)/docs-tools.txt
	$(PIP) install -q -r $(@D)/docs-tools.txt
	touch $@

train: install  ## train a small network on two workers
	$(VENV)/bin/tfdear run -n 2 examples/digits.py

# In the folder of the examples, as they see the package that reads the texts.
text: $(DEPENDENCIES)  ## fetch and prepare the texts of examples/nlp into build/text, once
	cd examples/nlp && $(if $(TFDEAR_TEXT),TFDEAR_TEXT=$(abspath $(TFDEAR_TEXT))) \
	    $(abspath $(VENV))/bin/python -m text.prepare

test: test-cc test-python  ## run every test

test-cc: install
	$(BAZEL) test //...

test-python: install system-tests $(TOOLS)
	$(VENV)/bin/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	    $(PYTEST_ARGS)

test-long: install system-tests $(TOOLS)  ## run the sweeps and cases that take too long for every change
	$(VENV)/bin/python -m pytest -m long $(PYTEST_ARGS)

docs: $(DOCS_TOOLS)  ## build the documentation, with the API reference, into build/docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build
	@# Readers must not depend on other servers, nor be seen by them.
	@! grep -rEn '(<script[^>]*src|<img[^>]*src|<link[^>]*href)="?(https?:)?//' --include='*.html' build/docs
	@echo "Open build/docs/index.html"

lint: $(DEPENDENCIES) $(TOOLS)  ## check format, style and types
	$(VENV)/bin/clang-format --dry-run -Werror $(CC_FILES)
	@if command -v clang++ >/dev/null; then echo '$(CHECK_LOCKS)'; $(CHECK_LOCKS); \
	    else echo "make: there is no clang++, which checks locks (make locks installs it)"; fi
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# Clang knows the annotations of thread_annotations.h; GCC, which builds the library, does not.
CHECK_LOCKS = find custom_ops/engine -name "*.cc" | xargs -n 8 -P 2 clang++ -std=c++17 -I. \
    $(TFDEAR_GLOO_ROOT:%=-isystem %/include) -fsyntax-only -Wthread-safety -Werror=thread-safety \
    -Wno-unknown-warning-option
locks: system-fuzz  ## check that what a lock guards is used with the lock held (with Clang)
	$(CHECK_LOCKS)

format: $(TOOLS)  ## apply the formatters
	$(VENV)/bin/clang-format -i $(CC_FILES)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

sanitize: system  ## run the C++ tests under the thread and the address sanitizer
	$(BAZEL) test --config=tsan //tests/cc/...
	$(BAZEL) test --config=asan //tests/cc/...

# New inputs go to build/fuzz/NAME; libFuzzer's -merge=1 takes the best of them into the kept ones.
FUZZERS = $(patsubst tests/cc/fuzz/%.cc,%,$(wildcard tests/cc/fuzz/*_fuzz.cc))
FUZZ_FLAGS = -max_total_time=$(SECONDS) -rss_limit_mb=2048 -timeout=10 -print_final_stats=1
fuzz: SECONDS ?= 60
fuzz: system-fuzz  ## search for input that breaks a parser, SECONDS=60 for each
	$(BAZEL) build --config=fuzz $(FUZZERS:%=//tests/cc/fuzz:%)
	bin=$$($(BAZEL) info --config=fuzz bazel-bin 2>/dev/null)/tests/cc/fuzz; \
	for fuzzer in $(FUZZERS); do \
	    name=$${fuzzer%_fuzz}; echo "make: $$name"; mkdir -p build/fuzz/$$name; \
	    LSAN_OPTIONS=suppressions=tests/cc/lsan_suppressions.txt:print_suppressions=0 \
	    $$bin/$$fuzzer $(FUZZ_FLAGS) -artifact_prefix=build/fuzz/$$name- \
	        build/fuzz/$$name tests/cc/fuzz/corpus/$$name; \
	done

cuda: build/top_k_standalone_test  ## compile the kernels for GPUs, and their test (needs nvcc)

# TensorFlow's flags, without the language standard, which NVCC_FLAGS has.
TF_FLAGS = $(shell CUDA_VISIBLE_DEVICES= TF_CPP_MIN_LOG_LEVEL=3 $(VENV)/bin/python -c 'import \
    tensorflow as tf; print(*(f.replace("--std=c++17", "") for f in tf.sysconfig.$(1)()))' 2>/dev/null)

cuda-ops: tfdear/_tfdear_cuda_ops.so  ## build the ops for GPUs (needs nvcc and `make install`)

tfdear/_tfdear_cuda_ops.so: custom_ops/kernels/cuda/mstopk_kernels.cu.cc \
    custom_ops/kernels/cuda/top_k_cuda.cu.h custom_ops/engine/base/data_type.cc \
    custom_ops/engine/base/data_type.h | nvcc $(DEPENDENCIES)
	$(NVCC) $(NVCC_FLAGS) --expt-relaxed-constexpr \
	    -diag-suppress 20012,20013,20014,20015 -Xcompiler -fPIC -shared -o $@ \
	    $(patsubst -I%,-isystem %,$(call TF_FLAGS,get_compile_flags)) $(filter %.cc,$^) \
	    $(call TF_FLAGS,get_link_flags)

nvcc:
	@command -v $(NVCC) >/dev/null || { echo "make: there is no $(NVCC). Install the CUDA toolkit," \
	    "12.0 or newer, or say where it is: make cuda NVCC=/usr/local/cuda/bin/nvcc" >&2; exit 1; }

build/top_k_standalone_test: custom_ops/kernels/cuda/top_k_standalone_test.cu.cc \
    custom_ops/kernels/cuda/top_k_cuda.cu.h custom_ops/engine/base/data_type.cc \
    custom_ops/engine/base/data_type.h | nvcc
	mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) -o $@ $(filter %.cc,$^)

clean:  ## remove the environment and everything built
	-$(BAZEL) clean
	rm -rf $(VENV) build dist tfdear.egg-info tfdear/_libraries tfdear/_tfdear_*.so

help:
	@sed -n 's/^\([a-z]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST)
