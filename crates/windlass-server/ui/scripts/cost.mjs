// Measures what the dashboard costs a server: its resident memory and the time until it listens, with the dashboard and
// without it, in turns. `SHOWCASE` is the binary of the example `showcase`.
import { readFileSync } from "node:fs";
import { startShowcase } from "./showcase.mjs";

const ROUNDS = Number(process.env.ROUNDS ?? 15);
const found = { empty: { memory: [], start: [] }, plain: { memory: [], start: [] } };
const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];

for (let round = 0; round < ROUNDS; round += 1) {
  for (const mode of ["plain", "empty"]) {
    const began = performance.now();
    const server = await startShowcase("0", "0", mode);
    found[mode].start.push(performance.now() - began);
    // All files are sent once, so that what they take in memory is there.
    if (mode === "empty") {
      for (const file of ["", "assets/index.js", "assets/index.css", "assets/graph.worker.js"]) {
        for (const coding of ["br", "identity"]) {
          const headers = { "accept-encoding": coding };
          await (await fetch(`${server.origin}/ui/${file}`, { headers })).arrayBuffer();
        }
      }
    } else await (await fetch(`${server.origin}/healthz`)).text();
    const status = readFileSync(`/proc/${server.pid}/status`, "utf8");
    found[mode].memory.push(Number(/VmRSS:\s+(\d+)/.exec(status)[1]) / 1024);
    server.stop();
  }
}
for (const [name, unit] of [
  ["memory", "MB"],
  ["start", "ms"],
]) {
  const [without, withIt] = [median(found.plain[name]), median(found.empty[name])];
  const more = (withIt - without).toFixed(1);
  console.log(
    `${name.padEnd(8)} without ${without.toFixed(1)}, with ${withIt.toFixed(1)}: ${more} ${unit} more, median of ${ROUNDS}`,
  );
}
