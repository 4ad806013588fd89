#!/usr/bin/env bash
# Succeeds when Spark will find Java 17 or newer; installs it where this user may, else says in one line what to do.
set -u

found() { # prints the major version of the Java that Spark would start (17, 21, ...; 8 for "1.8"), or nothing
  local java=java
  [ -n "${JAVA_HOME:-}" ] && java=$JAVA_HOME/bin/java
  "$java" -version 2>&1 | sed -nE 's/.* version "(1\.)?([0-9]+).*/\2/p' | head -n 1
}
enough() { [ "${1:-0}" -ge 17 ]; }

version=$(found)
enough "$version" && exit 0
if [ -n "${JAVA_HOME:-}" ]; then
  echo "Spark needs Java 17 or newer; JAVA_HOME=$JAVA_HOME holds ${version:+Java }${version:-none}. Point it to a newer one, or unset it." >&2
  exit 1
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing openjdk-17-jre-headless (Spark needs Java 17 or newer) ..."
  export DEBIAN_FRONTEND=noninteractive
  for package in openjdk-17-jre-headless openjdk-21-jre-headless; do # newer releases carry only the second
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$package"; } >/dev/null 2>&1 || true
    enough "$(found)" && exit 0
  done
fi
echo "Spark needs Java 17 or newer and found ${version:+Java }${version:-none}: install openjdk-17-jre-headless (or a JDK 17), or set JAVA_HOME." >&2
exit 1
