#!/usr/bin/env bash
# The supported Pythons of this machine, one path a line: those on the path and those of pyenv.
# With a name (python3.12, or a path): the one that it means.
set -u
runs() { "$1" -c "import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$2')" >/dev/null 2>&1; }
find_version() {
  for found in $(type -ap "python$1") "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
    if runs "$found" "$1"; then
      echo "$found"
      return
    fi
  done
}
if [ $# -eq 0 ]; then
  for version in 3.11 3.12 3.13 3.14; do find_version "$version"; done
elif [[ $1 =~ ^python(3\.[0-9]+)$ ]]; then
  found=$(find_version "${BASH_REMATCH[1]}")
  echo "${found:-$1}"
else
  echo "$1"
fi
