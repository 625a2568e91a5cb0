// Uses the tools of a Windlass server through the TypeScript SDK. Arguments: the URL of MCP, the program, the URL of the API.
import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [url, program, api] = process.argv.slice(2);

async function use(name, transport) {
  const client = new Client({ name: "verify", version: "1" });
  await client.connect(transport);
  assert.equal(client.getServerVersion().name, "windlass");
  const { tools } = await client.listTools();
  const control = tools.find((tool) => tool.name === "control_run");
  assert.equal(control.annotations.destructiveHint, true);

  const call = async (tool, args) => {
    const result = await client.callTool({ name: tool, arguments: args });
    assert.equal(JSON.stringify(JSON.parse(result.content[0].text)), JSON.stringify(result.structuredContent));
    return result;
  };
  const run = { workflow: "hello", id: `verify-${name}` };
  const started = await call("start_run", { ...run, params: "MCP" });
  assert.equal(started.isError, false, started.content[0].text);
  let found;
  do {
    await new Promise((done) => setTimeout(done, 50));
    found = (await call("get_run", run)).structuredContent;
  } while (found.details.status !== "complete");
  assert.equal(found.details.output, "HELLO, MCP!");
  const dry = await call("control_run", { ...run, action: "restart", dryRun: true });
  assert.equal(dry.structuredContent.accepted, true);
  const wrong = await call("get_run", { workflow: "hello" });
  assert.equal(wrong.isError, true);
  assert.equal(wrong.structuredContent.code, "INVALID_ARGUMENT");
  await assert.rejects(client.callTool({ name: "nothing", arguments: {} }), /unknown tool/);
  await client.close();
  console.log(`${name}: ${tools.length} tools`);
}

await use("http", new StreamableHTTPClientTransport(new URL(url)));
await use("stdio", new StdioClientTransport({ command: program, args: ["mcp", "--url", api] }));
