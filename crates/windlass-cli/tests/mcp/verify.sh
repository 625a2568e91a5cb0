#!/bin/sh
# Lets the official TypeScript SDK of the Model Context Protocol and the MCP inspector, both from npm, use the tools of
# `windlass dev`: over HTTP and through `windlass mcp`. Needs cargo, node, npm and the network; not part of the tests.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
server=
stop() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap stop EXIT
npm install --silent --no-fund --no-audit --prefix "$work" \
    @modelcontextprotocol/sdk@1 @modelcontextprotocol/inspector >/dev/null
cd "$here/../../../.."
cargo build --quiet -p windlass-cli
windlass=$(pwd)/${CARGO_TARGET_DIR:-target}/debug/windlass
(cd "$work" && exec "$windlass" dev --ephemeral --port 0 >"$work/dev.log" 2>&1) &
server=$!
api=
while [ -z "$api" ]; do
    kill -0 "$server" || { cat "$work/dev.log"; exit 1; }
    api=$(sed -n 's/^ *api *\(http[^ ]*\).*/\1/p' "$work/dev.log")
    [ -n "$api" ] || sleep 0.2
done
cp "$here/verify.mjs" "$work/verify.mjs"
node "$work/verify.mjs" "${api%/api}/mcp" "$windlass" "$api"
inspector=$work/node_modules/.bin/mcp-inspector
"$inspector" --cli "${api%/api}/mcp" --transport http --method tools/list >"$work/tools.json"
node -e '
const { tools } = JSON.parse(require("node:fs").readFileSync(process.argv[1], "utf8"));
if (!tools.some((tool) => tool.name === "why")) throw new Error("the inspector lists no tool `why`");
console.log(`inspector: ${tools.length} tools`);' "$work/tools.json"
"$inspector" --cli "${api%/api}/mcp" --transport http --method tools/call --tool-name search_docs \
    --tool-arg query=RUN_NOT_ERRORED >"$work/docs.json"
grep -q RUN_NOT_ERRORED "$work/docs.json"
echo "inspector: search_docs answers"
