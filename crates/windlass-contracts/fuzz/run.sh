#!/bin/sh
# Fuzzes one target without a download and without a nightly compiler:
#   crates/windlass-contracts/fuzz/run.sh expression|patch [SECONDS]
# The exit code is 1 if an input failed; the input is then under `artifacts`.
set -eu
cd "$(dirname "$0")"
target=$1
seconds=${2:-1200}
triple=$(rustc -vV | sed -n 's/^host: //p')
# With a target triple the flags reach only the code that is fuzzed, not the build scripts.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Ccodegen-units=1 -Cdebug-assertions=on" \
    cargo build --release --offline --target "$triple" --bin "$target" \
    --config 'patch.crates-io.libfuzzer-sys.path="offline"'
mkdir -p "corpus/$target" "artifacts/$target"
exec "target/$triple/release/$target" "$seconds" "corpus/$target" "artifacts/$target" "$target.dict"
