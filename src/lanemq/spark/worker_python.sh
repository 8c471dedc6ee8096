#!/bin/sh
# Starts Python for Spark with the installed PySpark instead of its copy in pyspark.zip: see worker_python.py.
: "${LANEMQ_WORKER_PYTHON:?not set: create the session with lanemq.spark.recommended(), or set PYSPARK_PYTHON to a Python}"
kept=
set -f
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
        "${LANEMQ_WORKER_SPARK_HOME:-none}"/python/lib/*.zip) ;;
        *) kept=${kept:+$kept:}$entry ;;
    esac
done
PYTHONPATH=$kept
export PYTHONPATH
exec "$LANEMQ_WORKER_PYTHON" "$@"
