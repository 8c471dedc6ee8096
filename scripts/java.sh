#!/usr/bin/env bash
# Finds a Java runtime for Spark (17 or newer), or installs one with apt-get when run as root.
# Prints one line, or with --home only the folder for JAVA_HOME. Exit code 1: there is none. Spark tests are then skipped,
# and `make run` ends with the message below.
set -uo pipefail

new_enough() {
    local version
    version=$("$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ -n "$version" ] && [ "$version" -ge 17 ]
}

found() {
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
        if [ -n "$java" ] && [ -x "$java" ] && new_enough "$java"; then
            home=$(dirname "$(dirname "$(readlink -f "$java")")")
            if [ "${1:-}" = "--home" ]; then echo "$home"; else echo "Java for Spark: $home"; fi
            return 0
        fi
    done
    return 1
}

found "$@" && exit 0
[ "${1:-}" = "--home" ] && exit 1
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "installing a Java 17 runtime for Spark (once)"
    { apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless; } >/dev/null 2>&1
    found && exit 0
fi
echo "Spark needs a Java runtime, version 17 or newer: install one (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME."
exit 1
