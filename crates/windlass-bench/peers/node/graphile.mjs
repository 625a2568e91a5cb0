// graphile-worker: a queue of empty tasks on PostgreSQL.

import { parseArgs } from "node:util";

import { makeWorkerUtils, run } from "graphile-worker";
import { Pool } from "pg";

const { values } = parseArgs({
  allowPositionals: true,
  options: { place: { type: "string" }, tasks: { type: "string" } },
});
const tasks = Number(values.tasks);

// The settings of its own benchmark of many small jobs: a local queue of 500, 24 concurrent jobs, and
// batched completions.
const preset = {
  worker: {
    connectionString: values.place,
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
};
const logger = { scope: () => logger, debug() {}, info() {}, warn: console.error, error: console.error };

const utils = await makeWorkerUtils({ connectionString: values.place });
await utils.migrate();
await utils.release();
const pool = new Pool({ connectionString: values.place, max: 1 });
await pool.query(
  `select graphile_worker.add_jobs(array(
    select json_populate_record(null::graphile_worker.job_spec,
      json_build_object('identifier', 'nothing', 'payload', json_build_object('n', n)))
    from generate_series(1, $1) as n))`,
  [tasks],
);
await pool.query("analyze");

let done = 0;
const started = performance.now();
const runner = await run({ preset, logger, taskList: { nothing: () => void (done += 1) } });
while (done < tasks) await new Promise((resolve) => setTimeout(resolve, 2));
// A task counts when its completion is stored.
for (;;) {
  const { rows } = await pool.query("select count(*)::int as left from graphile_worker.jobs");
  if (rows[0].left === 0) break;
}
const seconds = (performance.now() - started) / 1e3;
await runner.stop();
await pool.end();
if (done !== tasks) throw new Error(`${tasks} tasks were started ${done} times`);
console.log(JSON.stringify({ tasks_per_s: tasks / seconds }));
process.exit(0);
