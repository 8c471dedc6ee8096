#!/usr/bin/env bash
# Every client against every broker: one line per combination with its counts.
# COMBOS="apache:java5 lane:java49" chooses some (backend:client); ARGS goes to pytest.
set -u
cd "$(dirname "$0")/.."
python=.venv/bin/python
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

all="lane:lane lane:java49 lane:java5 lane:spark apache:lane apache:java49 apache:java5 apache:spark"
"$python" -m interop.maven || all="lane:lane lane:spark" # it has said in one line what is missing for the others
"$python" -m pytest interop/selftest -q > "$results/selftest" || { cat "$results/selftest"; exit 1; }

combos=${COMBOS:-$all}
failed=0
table=$(printf '%-10s %-8s %6s %6s %7s %7s' backend client passed failed skipped seconds)
for combo in $combos; do
  backend=${combo%%:*} client=${combo##*:}
  echo "== $backend $client"
  folder=var/interop/$backend-$client
  mkdir -p var/interop
  cases="interop/cases --client $client"
  if [ "$client" = spark ]; then cases=interop/spark; fi
  # shellcheck disable=SC2086
  if "$python" -m pytest $cases --backend "$backend" -q --no-header \
    --basetemp="$folder" --junitxml="$results/$combo.xml" ${ARGS:-}; then
    rm -rf "$folder"
  else
    failed=1
    echo "logs of broker and client: $folder"
  fi
  table+=$'\n'$("$python" -m interop.counts "$results/$combo.xml" "$backend" "$client")
done
echo
echo "$table"
exit $failed
