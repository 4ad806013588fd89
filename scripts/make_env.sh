#!/usr/bin/env bash
# Makes .venv, or brings it up to date when pyproject.toml or constraints.txt changed, and compiles the kernels where
# that has not been done for their sources. PYTHON names the interpreter.
set -eu
cd "$(dirname "$0")/.."

venv=.venv
stamp=$venv/.installed
wanted="$(cat pyproject.toml constraints.txt | cksum) $PWD"
compile_kernels() {
  { "$venv/bin/python" -m sparkdl.compiled || echo "NumPy's kernels will run." >&2; } | { grep -v "are ready in" || true; }
}
usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && usable "$venv/bin/python"; then
  compile_kernels
  exit 0
fi

if ! { usable "$venv/bin/python" && "$venv/bin/python" -m pip --version; } >/dev/null 2>&1; then # absent or half made
  for python in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
    usable "$python" && break
    python=
  done
  if [ -z "$python" ]; then
    echo "Python 3.11 or newer is needed and ${PYTHON:-python3} is not one: install it, or name it: make env PYTHON=/path/to/python" >&2
    exit 1
  fi
  if ! made=$("$python" -m venv --clear "$venv" 2>&1); then
    echo "$python could not make $venv (on Debian-like systems: apt-get install python3-venv): $made" >&2
    exit 1
  fi
fi

rm -f "$stamp"
echo "Installing sparkdl and what it needs into $venv (once; a few minutes) ..."
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  -c constraints.txt -e '.[fast,plot,image,onnx,test,dev]'; then
  echo "The packages above could not be installed. Is there a network, or a local index that pip is told of? Then: make env" >&2
  exit 1
fi
echo "$wanted" >"$stamp"
compile_kernels
