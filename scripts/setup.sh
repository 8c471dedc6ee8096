#!/usr/bin/env bash
# Builds the virtual environment that every make target runs in. Called by the Makefile only.
set -euo pipefail
python="$1" venv="$2"

if ! command -v "$python" >/dev/null; then
    echo "LaneMQ needs Python 3.11 or newer: install it, or run 'make setup PYTHON=/path/to/python3'." >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "LaneMQ needs Python 3.11 or newer, but $python is $("$python" -V 2>&1): run 'make setup PYTHON=python3.11'." >&2
    exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    echo "$python has no venv module: install it (on Debian and Ubuntu: apt-get install python3-venv)." >&2
    exit 1
fi
mkdir -p var
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "setting up $venv (once)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev,fast,spark,postgres,plots]"
