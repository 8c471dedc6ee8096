#!/usr/bin/env bash
# Finds Chromium for the console's tests, or installs it with apt-get when run as root, and fetches axe-core with npm.
# Prints one line, or with --path only the path of Chromium. Exit code 1: there is none, and `make browser` ends with
# the message below.
set -uo pipefail

AXE=axe-core@4.14.0

found() {
    for name in "${LANEMQ_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
        if [ -n "$name" ] && path=$(command -v "$name"); then
            if [ "${1:-}" = "--path" ]; then echo "$path"; else echo "browser: $path"; fi
            return 0
        fi
    done
    return 1
}

fetch_axe() {
    [ -f var/axe/package/axe.min.js ] && return 0
    command -v npm >/dev/null || { echo "npm is not installed: the accessibility test is skipped"; return 0; }
    mkdir -p var/axe && (cd var/axe && npm pack --silent "$AXE" >/dev/null 2>&1 && tar xzf axe-core-*.tgz) \
        || echo "$AXE could not be fetched: the accessibility test is skipped"
}

if [ "${1:-}" = "--path" ]; then found --path; exit $?; fi
fetch_axe
found && exit 0
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "installing Chromium for the console's tests (once)"
    { apt-get update && apt-get install --yes --no-install-recommends chromium; } >/dev/null 2>&1
    found && exit 0
fi
echo "The console's tests need Chromium: install it (Debian: apt-get install chromium; macOS: brew install chromium) or set LANEMQ_CHROMIUM."
exit 1
