#!/bin/sh
# Installs the ALFWorld engine into an environment: scripts/alfworld/install.sh PYTHON (default: .venv/bin/python)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
python=${1:-.venv/bin/python}
uv=$(dirname "$python")/uv
[ -x "$uv" ] || uv=uv

for tool in cmake g++ make; do
  command -v "$tool" >/dev/null || {
    echo "install.sh: $tool is missing; the planner is compiled from source (Debian: apt install cmake g++ make)" >&2
    exit 2
  }
done
echo "Installing the ALFWorld engine (the planner takes 2-3 minutes to compile the first time) ..."
"$uv" pip install --quiet --python "$python" --no-deps --require-hashes -r "$here/engine.txt"
# The platform is named so that the wheel is also taken where it was not published for (ARM, macOS).
"$uv" pip install --quiet --python "$python" --no-deps --require-hashes \
  --python-platform x86_64-unknown-linux-gnu -r "$here/textworld.txt"
"$python" -c 'from histobench.mint.alfworld.simulator import Simulator; Simulator().close(); print("ALFWorld is ready.")'
