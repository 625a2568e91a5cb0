#!/usr/bin/env bash
# Random and malformed requests, made from the OpenAPI document by schemathesis, against the binary: on SQLite,
# and on PostgreSQL if there is one. From the root of the repository:
#
#   cargo build -p windlass-cli
#   cargo xtask pg -- crates/windlass-server/tests/fuzz/run.sh [REQUESTS]
#
# It fails if an answer is a 500, or none comes within 20 seconds, or is not what the document says, or if the
# server's memory grows from the first half of the requests to the second. It is not part of `cargo xtask test`,
# because it downloads schemathesis and takes minutes.
set -euo pipefail

wanted=${1:-10000}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
binary=${WINDLASS_BINARY:-$target/debug/windlass}
port=${WINDLASS_FUZZ_PORT:-7979}
url=http://127.0.0.1:$port
work=$target/fuzz
mkdir -p "$work"
# It leaves its cache where it is started.
cd "$work"

if [ ! -x "$work/venv/bin/schemathesis" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet schemathesis
fi

data=$(mktemp -d "$work/data.XXXXXX")
server=
stop() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        server=
    fi
}
trap 'stop; rm -rf "$data"' EXIT

resident() { awk '/^VmRSS/ { print int($2 / 1024) }' "/proc/$server/status"; }
# What the server says that it answered: all, or with a status that matches.
answered() {
    curl --silent "$url/metrics" |
        awk -v status="status=\"$1\"" '/^windlass_http_requests_total/ && $0 ~ status { n += $NF } END { print n + 0 }'
}

fuzz() {
    local store=$1 name=$2 failed=0 seed=1 round=0
    # Waits are short, so that whoever asks to wait is no hang; live streams never end and are left out below.
    "$binary" server --store "$store" --bind "127.0.0.1:$port" --auth off --samples --tick --metrics-open \
        --wait-max '1 second' --ready-grace '0 seconds' --drain '5 seconds' --log error &
    server=$!
    for _ in $(seq 100); do
        curl --silent --fail --output "$work/ready" "$url/readyz" && break
        sleep 0.1
    done
    for id in a b c fuzz-1 fuzz-2; do
        curl --silent --output "$work/created" --header 'content-type: application/json' \
            --data "{\"id\":\"$id\",\"params\":\"x\"}" "$url/api/workflows/hello/instances"
    done
    local before half=0 after began=$SECONDS
    before=$(resident)
    while [ "$(answered '[0-9]+')" -lt "$wanted" ]; do
        round=$((round + 1))
        "$work/venv/bin/schemathesis" --config-file "$here/schemathesis.toml" run "$url/api/openapi.json" \
            --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
            --exclude-path-regex '/live$' --phases examples,coverage,fuzzing --mode all --max-examples 40 \
            --request-timeout 20 --workers 2 --continue-on-failure --no-shrink --warnings off \
            --seed "$seed" >"$work/$name-$round.log" 2>&1 || failed=1
        seed=$((seed + 1))
        [ "$half" -eq 0 ] && half=$(resident)
        if [ "$failed" -ne 0 ] || ! kill -0 "$server" 2>/dev/null; then break; fi
    done
    after=$(resident || echo 0)
    local all errors
    all=$(answered '[0-9]+')
    errors=$(answered 500)
    echo "$name: $all requests in $((SECONDS - began)) s, $errors answers with 500," \
        "resident memory $before MiB at the start, $half MiB after the first round, $after MiB at the end"
    stop
    if [ "$failed" -ne 0 ]; then
        echo "$name: schemathesis is not content: $work/$name-$round.log" >&2
        tail -n 60 "$work/$name-$round.log" >&2
        return 1
    fi
    if [ "$errors" -ne 0 ] || [ "$all" -lt "$wanted" ]; then return 1; fi
    # A quarter more is what caches and the allocator may keep.
    if [ "$after" -gt $((half + half / 4 + 32)) ]; then
        echo "$name: memory grows" >&2
        return 1
    fi
}

fuzz "sqlite:$data/fuzz.db" sqlite
if [ -n "${WINDLASS_TEST_PG:-}" ]; then
    fuzz "$WINDLASS_TEST_PG" postgres
fi
