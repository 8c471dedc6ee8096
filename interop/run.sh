#!/usr/bin/env bash
# Every client against every broker: one line per combination with its counts, and the table client × feature.
# COMBOS="apache:java5 lane:go" chooses some (backend:client); ARGS goes to pytest.
set -u
cd "$(dirname "$0")/.."
python=.venv/bin/python
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

java="lane:java49 lane:java5 apache:lane apache:java49 apache:java5 apache:spark apache:mirror apache:console"
"$python" -m interop.maven || java="" # it has said in one line what is missing
programs=$("$python" -m interop.programs) # a line for each that cannot be built here
others=$(for name in $programs; do echo "lane:$name"; done)
"$python" -m pytest interop/selftest -q > "$results/selftest" || { cat "$results/selftest"; exit 1; }

combos=${COMBOS:-lane:lane lane:spark lane:grpc $java $others}
failed=0
features=()
table=$(printf '%-10s %-8s %6s %6s %7s %7s' backend client passed failed skipped seconds)
for combo in $combos; do
  backend=${combo%%:*} client=${combo##*:}
  echo "== $backend $client"
  folder=var/interop/$backend-$client
  report=$results/$combo.xml
  mkdir -p var/interop
  case $client in
    spark | mirror | console | grpc) cases=interop/$client ;;
    lane | java49 | java5) cases="interop/cases --client $client" ;;
    *) cases="interop/languages --client $client" features+=("$client=$report") ;;
  esac
  # shellcheck disable=SC2086
  if "$python" -m pytest $cases --backend "$backend" -q --no-header \
    --basetemp="$folder" --junitxml="$report" ${ARGS:-}; then
    rm -rf "$folder"
  else
    failed=1
    echo "logs of broker and client: $folder"
  fi
  table+=$'\n'$("$python" -m interop.counts "$report" "$backend" "$client")
done
echo
echo "$table"
if [ ${#features[@]} -gt 0 ]; then
  echo
  "$python" -m interop.features "${features[@]}"
fi
exit $failed
