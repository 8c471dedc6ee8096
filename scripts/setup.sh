#!/usr/bin/env bash
# Builds the virtual environment of the make targets and prints a line for each stage. Called by the Makefile.
#   bash scripts/setup.sh PYTHON FOLDER main|tools
# `main` is what the main job and the tutorial need; `tools` adds what tests, documents and benchmarks need.
set -euo pipefail
python="$1" venv="$2" what="$3"
case "$what" in
    main) extras=fast,spark,console
        size="Spark among them: about 1.1 GB once installed, one or two minutes the first time" ;;
    tools) extras=dev,fast,spark,postgres,sqlalchemy,plots,console,docs
        size="those of development too: about 2 GB once installed, a few minutes the first time" ;;
esac

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

# Prints what takes long when it begins: large downloads, then unpacking.
tell_steps() {
    while IFS= read -r line; do
        case "$line" in
            *Downloading*" MB)"* | *"Using cached"*" MB)"*) line=${line##*Downloading } line=${line##*cached }
                echo "              ${line##*/}" ;;
            *"lanemq: compiling "*) echo "              ${line##*lanemq: }" ;;
            "Installing collected packages"*) echo "              unpacking all of them" ;;
        esac
    done
}

mkdir -p var
log=var/setup.log

echo "setup 1 of 3: a virtual environment in $venv, with $("$python" -V 2>&1)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

echo "setup 2 of 3: packages, $size"
echo "              (the whole output is in $log)"
# Verbose, because pip otherwise hides what the build says while it compiles.
if ! "$venv/bin/python" -m pip install --verbose --disable-pip-version-check --progress-bar off \
    --constraint constraints.txt --editable ".[$extras]" pytest 2>&1 | tee "$log" | tell_steps; then
    echo "setup failed; the end of $log:" >&2
    tail -n 20 "$log" >&2
    exit 1
fi

echo "setup 3 of 3: $("$venv/bin/lanemq" --version)"
