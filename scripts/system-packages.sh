#!/usr/bin/env bash
# Installs the Debian packages that some tests use: a browser for the report, bubblewrap for the sandbox, bsdtar for RAR,
# Slurm and its munge for a cluster of two nodes on this machine.
# Where that is not possible (not root, no apt) it says so, and those tests are skipped.
set -u
missing=()
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
  || missing+=(chromium)
command -v bsdtar >/dev/null || missing+=(libarchive-tools)
command -v slurmctld >/dev/null || missing+=(slurm-wlm munge)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "note: not installed: ${missing[*]} (the tests that need them are skipped)" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null 2>&1
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1 \
  || echo "note: could not install ${missing[*]} (the tests that need them are skipped)" >&2
exit 0
