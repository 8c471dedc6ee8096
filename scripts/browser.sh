#!/usr/bin/env bash
# Finds Chromium for the console's tests, or installs it with apt-get when run as root, and fetches axe-core with npm.
# Prints one line for each. With --look prints one line about Chromium, and installs nothing. With --path prints only its
# path. With --axe prints only the path of axe-core, which is fetched into var/ once. Exit code 1: there is none, and the
# line says what to do.
set -uo pipefail

AXE_VERSION=4.14.0
AXE="var/axe/$AXE_VERSION/package/axe.min.js"

find_browser() {
    for name in "${LANEMQ_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
        if [ -n "$name" ] && command -v "$name"; then return 0; fi
    done
    return 1
}

fetch_axe() {
    if [ ! -f "$AXE" ]; then
        command -v npm >/dev/null || { echo "The accessibility tests need npm, which fetches axe-core: install Node.js."; return 1; }
        # Unpacked beside its place and then moved, so that two tests at once do not read half of it.
        local made="var/axe/$AXE_VERSION.$$"
        mkdir -p "$made" && (cd "$made" && npm pack --silent "axe-core@$AXE_VERSION" >/dev/null 2>&1 && tar xzf axe-core-*.tgz) \
            || { rm -rf "$made"; echo "axe-core $AXE_VERSION could not be fetched with npm: the accessibility tests need it."; return 1; }
        if [ -d "var/axe/$AXE_VERSION" ]; then rm -rf "$made"; else mv "$made" "var/axe/$AXE_VERSION"; fi
    fi
    echo "$AXE"
}

case "${1:-}" in
    --look)
        if path=$(find_browser); then echo "browser: $path"; else
            echo "Chromium is not installed, so the console's tests in a browser are skipped: make browser installs it, or says how."
        fi
        exit ;;
    --path) find_browser; exit ;;
    --axe) fetch_axe; exit ;;
esac

if ! path=$(find_browser) && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "installing Chromium for the console's tests (once)"
    { apt-get update && apt-get install --yes --no-install-recommends chromium; } >/dev/null 2>&1
fi
if ! path=$(find_browser); then
    echo "The console's tests need Chromium: install it (Debian: apt-get install chromium; macOS: brew install chromium) or set LANEMQ_CHROMIUM."
    exit 1
fi
echo "browser: $path"
fetch_axe
