#!/bin/sh
# Has the packages `standardwebhooks` of Python (PyPI) and JavaScript (npm) verify what Windlass signs, with each
# secret of a rotation, and refuse what was changed. Needs cargo, python3 with venv, node, npm and the network; not part of the tests.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
new=whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD
old=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check standardwebhooks
npm install --silent --no-fund --no-audit --prefix "$work" standardwebhooks >/dev/null
cd "$here/../../../.."
cargo run --quiet -p windlass --features webhooks --example webhook -- "$new,$old" >"$work/signed.json"
"$work/venv/bin/python" "$here/verify.py" "$work/signed.json" "$new" "$old"
NODE_PATH="$work/node_modules" node "$here/verify.cjs" "$work/signed.json" "$new" "$old"
