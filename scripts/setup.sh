#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Make the virtual environment that `make serve` and `make test` run in. Safe to run again: a step
# is repeated only when its own commands or input files have changed, or when it failed before.
#
# Variables: PYTHON (default python3), VENV (.venv), TORCH_INDEX (see install_torch).
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
TORCH_INDEX=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
TORCH=2.13.0
VLLM=0.33.0
export PIP_DISABLE_PIP_VERSION_CHECK=1

pip() { "$VENV/bin/python" -m pip "$@"; }
fail() {
    echo "setup: $*" >&2
    exit 1
}

create_venv() {
    "$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' ||
        fail "$PYTHON is not Python 3.11 to 3.14; name another one: make PYTHON=python3.11"
    "$PYTHON" -m venv "$VENV" ||
        fail "$PYTHON cannot make a virtual environment (Debian, Ubuntu: install python3-venv)"
}

# The package index serves a CUDA build for Linux under the plain version, with gigabytes of
# libraries that nothing here uses. The CPU build is the same version with the label "+cpu". It is
# taken from pip's configured sources where they have it, otherwise from TORCH_INDEX. There is no
# fallback to the CUDA build. Other systems have one build, without a label.
install_torch() {
    if [ "$(uname -s)" != Linux ]; then
        pip install --quiet "torch==$TORCH"
    elif pip install --quiet --dry-run --no-deps "torch==$TORCH+cpu" >/dev/null 2>&1; then
        pip install --quiet "torch==$TORCH+cpu"
    else
        pip install --quiet --extra-index-url "$TORCH_INDEX" "torch==$TORCH+cpu" ||
            fail "no CPU build of torch $TORCH; name an index that has it: make TORCH_INDEX=URL"
    fi
}

install_build_tools() {
    pip install --quiet --constraint constraints.txt \
        "setuptools>=77,<81" setuptools-scm setuptools-rust packaging wheel cmake ninja jinja2 numpy
}

# vLLM's published wheel is built for CUDA. With the target device "empty" its source distribution
# is pure Python and compiles nothing; the platform then comes from our plugin.
install_vllm() {
    VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$VLLM \
        pip install --quiet --constraint constraints.txt \
        --no-build-isolation --no-binary vllm "vllm==$VLLM"
}

install_trnport() {
    pip install --quiet --constraint constraints.txt --no-build-isolation \
        --editable ".[vllm,demo,bench,test]"
    if pip list 2>/dev/null | grep --ignore-case '^nvidia-'; then
        fail "the CUDA packages above were installed; run 'make clean-all' and report this, please"
    fi
}

# step NAME DESCRIPTION FUNCTION [FILE...]: run FUNCTION unless it succeeded before with the same
# commands, versions and FILEs, after the same steps.
chain=
number=0
step() {
    local name=$1 description=$2 function=$3 stamp
    shift 3
    number=$((number + 1))
    chain=$({
        echo "$chain"
        declare -f "$function"
        cat "$@" /dev/null
    } | cksum | tr ' ' -)
    stamp=$VENV/.stamps/$name-$chain
    [ -e "$stamp" ] && return
    echo "==> setup [$number/5] $description"
    local started=$SECONDS
    "$function"
    mkdir -p "$VENV/.stamps"
    rm -f "$VENV/.stamps/$name-"*
    touch "$stamp"
    echo "    done in $((SECONDS - started)) s"
}

step venv "virtual environment $VENV (a few seconds)" create_venv
chain+=$TORCH
step torch "CPU build of torch $TORCH (190 MB; about a minute)" install_torch
step tools "build tools (half a minute)" install_build_tools constraints.txt
chain+=$VLLM
step vllm "vLLM $VLLM from source, as pure Python (one to three minutes)" install_vllm constraints.txt
step trnport "trnport and its test tools (one minute)" install_trnport \
    constraints.txt pyproject.toml setup.py
