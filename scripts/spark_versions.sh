#!/usr/bin/env bash
# Runs one job on every PySpark 4 that LaneMQ supports, each in an environment of its own. Called by `make spark-versions`.
#   bash scripts/spark_versions.sh PYTHON [VERSION ...]
set -euo pipefail
python="$1"
shift
versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=(4.0 4.1 4.2 4.3)
folder=var/spark-versions
mkdir -p "$folder"
# Every version but the pinned one is chosen by its number.
grep -v '^pyspark==' constraints.txt > "$folder/constraints.txt"
failed=0
for version in "${versions[@]}"; do
    place="$folder/$version"
    if [ ! -e "$place/.ready" ]; then
        echo "PySpark $version: making $place"
        "$python" -m venv "$place"
        "$place/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$folder/constraints.txt" \
            "pyspark==$version.*" --editable ".[spark]" > "$place.log" 2>&1 || { tail -n 20 "$place.log" >&2; exit 1; }
        touch "$place/.ready"
    fi
    "$place/bin/python" -m scripts.spark_version_job || failed=1
done
exit "$failed"
