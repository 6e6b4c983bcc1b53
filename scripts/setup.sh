#!/bin/sh
# Fetches the public data of the language-model track (seven datasets, 134 household games; about 13 MB).
#
#   scripts/setup.sh                 download to data/processed; run it again to go on after an interruption
#   scripts/setup.sh --to DIR        download to another folder
#   scripts/setup.sh --from DIR      no network: take the files from DIR, a copy of the benchmark's data/processed
#   scripts/setup.sh --no-games      leave the household games out
#
# Every file is compared with the checksum in scripts/mint-data.sha256 before it is put in its place.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
repository=https://github.com/xingyaoww/mint-bench
commit=3f7f12c10bf763be1e6dbdeb42feb57624121f61
source=${HISTOBENCH_MINT_URL:-https://raw.githubusercontent.com/xingyaoww/mint-bench/$commit/data/processed}
target=data/processed
from=
games=yes

usage() {
  sed -n '2,9s/^# \{0,1\}//p' "$0"
}

while [ $# -gt 0 ]; do
  case $1 in
    --to) target=${2:?--to needs a folder}; shift ;;
    --from) from=${2:?--from needs a folder}; shift ;;
    --no-games) games=no ;;
    -h | --help) usage; exit 0 ;;
    *) echo "setup.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done

if command -v sha256sum >/dev/null; then
  digest() { sha256sum "$1" | cut -d ' ' -f 1; }
else
  digest() { shasum -a 256 "$1" | cut -d ' ' -f 1; }
fi

if [ -n "$from" ]; then
  fetch() { cp "$from/$1" "$2" 2>/dev/null; }
elif command -v curl >/dev/null; then
  fetch() { curl --fail --silent --show-error --location --retry 3 --connect-timeout 20 -o "$2" "$source/$1"; }
elif command -v wget >/dev/null; then
  fetch() { wget --quiet --tries 3 --timeout 20 -O "$2" "$source/$1"; }
else
  fetch() {
    python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], sys.argv[2])' "$source/$1" "$2"
  }
fi

advice() {
  if [ -n "$from" ]; then
    echo "setup.sh: $1 in $from; expected a copy of data/processed of $repository at $commit" >&2
  else
    echo "setup.sh: $1" >&2
    echo "No network here? On a machine that has one:" >&2
    echo "  git clone --filter=blob:none --sparse $repository && cd mint-bench" >&2
    echo "  git checkout $commit && git sparse-checkout set data/processed" >&2
    echo "copy data/processed over, and run: scripts/setup.sh --from PATH/TO/data/processed" >&2
  fi
  exit 1
}

total=0
fetched=0
while read -r expected path; do
  case $path in alfworld/*) [ "$games" = yes ] || continue ;; esac
  total=$((total + 1))
  file=$target/$path
  if [ -f "$file" ] && [ "$(digest "$file")" = "$expected" ]; then
    continue
  fi
  mkdir -p "$(dirname "$file")"
  part=$file.part
  fetch "$path" "$part" || { rm -f "$part"; advice "cannot get $path"; }
  if [ "$(digest "$part")" != "$expected" ]; then
    rm -f "$part"
    advice "$path has the wrong checksum"
  fi
  mv "$part" "$file"
  fetched=$((fetched + 1))
  [ ! -t 2 ] || printf '\r%s files fetched' "$fetched" >&2
done <"$here/mint-data.sha256"
[ ! -t 2 ] || printf '\r' >&2
echo "$target: $total files are there and have the right checksums ($fetched fetched now)"
