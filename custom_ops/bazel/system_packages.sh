#!/bin/sh
# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
# Installs what the build needs from Debian, if it is missing: as root by itself, else by saying how.
# With "tests", also what the tests start or mount; with "fuzz", Clang and its fuzzer.
# Usage: system_packages.sh [PYTHON [tests|fuzz]]
set -eu

python=${1:-python3}
extra=${2:-}
PATH=$PATH:/usr/sbin:/sbin
gloo=${TFDEAR_GLOO_ROOT:-/usr}/include/gloo/config.h
googletest=${TFDEAR_GTEST_ROOT:-/usr}/include/gtest/gtest.h

# What counts is whether a thing is there, not where it came from: Bazelisk serves as well as
# Debian's Bazel, a Gloo built by hand as well as a package.
list_missing() {
  command -v bazel >/dev/null || command -v bazelisk >/dev/null || echo bazel-bootstrap
  command -v g++ >/dev/null || echo g++
  # Nothing but backend="gloo" needs it: not worth a question.
  [ -e "$gloo" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || echo libgloo-dev
  [ -e "$googletest" ] || echo libgtest-dev
  "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  case $extra in
    tests) list_missing_of_tests ;;
    fuzz) list_missing_of_clang ;;
  esac
}

list_missing_of_tests() {
  command -v mpirun >/dev/null || echo openmpi-bin
  command -v torchrun >/dev/null || echo python3-torch
  command -v srun >/dev/null || echo slurm-client
  command -v slurmctld >/dev/null || echo slurmctld
  command -v slurmd >/dev/null || echo slurmd
  ldconfig -p | grep -q libfuse3 || echo fuse3
}

list_missing_of_clang() {
  command -v clang >/dev/null || echo clang
  # Debian 12 has version 14.
  version=$(clang -dumpversion 2>/dev/null | cut -d. -f1)
  fuzzer=$(clang -print-resource-dir 2>/dev/null || true)/lib/linux/libclang_rt.fuzzer-$(uname -m).a
  [ -e "$fuzzer" ] || echo "libclang-rt-${version:-14}-dev"
}

# Unquoted: one line of names.
missing=$(echo $(list_missing))
[ -n "$missing" ] || exit 0

install="apt-get install -y --no-install-recommends $missing"
if ! command -v apt-get >/dev/null; then
  echo "Missing, and this is no Debian or Ubuntu: $missing (Debian's names)." >&2
  echo "Install Bazelisk as bazel, a C++17 compiler, googletest (TFDEAR_GTEST_ROOT=PREFIX) and Python" >&2
  echo "3.10 or later, for backend=\"gloo\" also Gloo (TFDEAR_GLOO_ROOT=PREFIX), then run make again." >&2
  exit 1
fi
if [ "$(id -u)" != 0 ]; then
  echo "Missing: $missing. Run these two commands, then make again:" >&2
  echo "    sudo apt-get update" >&2
  echo "    sudo $install" >&2
  exit 1
fi

echo "Installing from Debian: $missing"
export DEBIAN_FRONTEND=noninteractive
# A fresh machine or container has no package lists; old ones may name files that are gone.
if ! $install -qq >/dev/null 2>&1; then
  apt-get update -qq
  $install -qq >/dev/null
fi
still_missing=$(echo $(list_missing))
if [ -n "$still_missing" ]; then
  echo "Still missing after '$install': $still_missing." >&2
  exit 1
fi
