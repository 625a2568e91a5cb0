// OpenWorkflow: a workflow of three steps on PostgreSQL.

import { OpenWorkflow } from "openworkflow";
import { BackendPostgres } from "openworkflow/postgres";

import { STEPS, measure, readArgs } from "./load.mjs";

/** The number of concurrent runs of the worker. The default is 1. */
const CONCURRENCY = 64;

const args = readArgs();
const backend = await BackendPostgres.connect(args.place);
const engine = new OpenWorkflow({ backend });

// The handle's `result` polls once per second, which would dominate the measurement. Therefore the last line of
// the workflow resolves its caller, before the commit that completes the run.
const waiting = new Map();

const workflow = engine.defineWorkflow({ name: "load" }, async ({ input, step }) => {
  let sum = input.n;
  for (let number = 0; number < STEPS; number += 1) {
    sum += await step.run({ name: `step-${number}` }, async () => 1);
  }
  waiting.get(input.n)?.(sum);
  waiting.delete(input.n);
  return sum;
});
const worker = engine.newWorker({ concurrency: CONCURRENCY });
await worker.start();
await measure(args, async (n) => {
  const result = new Promise((resolve) => waiting.set(n, resolve));
  await workflow.run({ n });
  return result;
});
await worker.stop();
await backend.stop();
process.exit(0);
