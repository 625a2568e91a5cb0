// Starts the example `showcase`, a server with data of all models. `SHOWCASE` is its binary.
import { spawn } from "node:child_process";
import { createServer } from "node:net";
import { createInterface } from "node:readline";

export async function freePort() {
  const server = createServer();
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

export async function startShowcase(...args) {
  const binary = process.env.SHOWCASE ?? "../../../target/debug/examples/showcase";
  const port = await freePort();
  const server = spawn(binary, [String(port), ...args], { stdio: ["ignore", "pipe", "inherit"] });
  const lines = createInterface({ input: server.stdout });
  // The line with its address comes when all data is there.
  const origin = `http://127.0.0.1:${port}`;
  await new Promise((done, fail) => {
    lines.on("line", (line) => line.startsWith(origin) && done());
    server.on("exit", (code) => fail(new Error(`the showcase ended with ${code}`)));
    server.on("error", fail);
  });
  return { origin, pid: server.pid, stop: () => server.kill("SIGINT") };
}
