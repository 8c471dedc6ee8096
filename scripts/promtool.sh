#!/usr/bin/env bash
# Finds Prometheus's promtool, which checks the alert rules, or fetches it from Debian's package into var/ without
# installing it. Prints its path. Exit code 1: there is none, and the line says what to do.
set -uo pipefail
cd "$(dirname "$0")/.."

FETCHED="var/promtool/usr/bin/promtool"

for name in "${LANEMQ_PROMTOOL:-}" promtool "$PWD/$FETCHED"; do
    if [ -n "$name" ] && command -v "$name"; then exit 0; fi
done

if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    # Unpacked beside its place and then moved, so that two tests at once do not run half of it.
    made="$PWD/var/promtool.$$"
    mkdir -p "$made/package"
    if (cd "$made/package" && apt-get download prometheus >/dev/null 2>&1 && dpkg-deb --extract prometheus_*.deb "$made" 2>/dev/null); then
        rm -rf "$made/package"
        if [ -d var/promtool ]; then rm -rf "$made"; else mv "$made" var/promtool; fi
    fi
    rm -rf "$made"
    if [ -x "$FETCHED" ]; then echo "$PWD/$FETCHED"; exit 0; fi
fi
echo "The alert rules are not evaluated: promtool is missing. Install Prometheus (Debian and Ubuntu: apt-get install prometheus; macOS: brew install prometheus) or set LANEMQ_PROMTOOL."
exit 1
