// DBOS for TypeScript: a workflow of three steps on PostgreSQL.

import { DBOS } from "@dbos-inc/dbos-sdk";

import { STEPS, measure, readArgs } from "./load.mjs";

const args = readArgs();

async function load(n) {
  let sum = n;
  for (let step = 0; step < STEPS; step += 1) {
    sum += await DBOS.runStep(async () => 1, { name: `step-${step}` });
  }
  return sum;
}

DBOS.setConfig({
  name: "load",
  systemDatabaseUrl: args.place,
  // The default is 10; with more connections, more commits share an fsync.
  systemDatabasePoolSize: 32,
  logLevel: "error",
});
const workflow = DBOS.registerWorkflow(load, { name: "load" });
await DBOS.launch();
await measure(args, async (n) => {
  const handle = await DBOS.startWorkflow(workflow, { workflowID: `run-${n}` })(n);
  return handle.getResult();
});
await DBOS.shutdown();
process.exit(0);
