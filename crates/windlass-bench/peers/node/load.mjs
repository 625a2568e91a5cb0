// The load for every peer on Node, the same as that of the crate `peers-load`.

import { parseArgs } from "node:util";

/** Steps of a run. */
export const STEPS = 3;
/** The number of the first measured run; lower numbers are the warm-up. */
const MEASURED = 1_000_000_000;
/** The time limit of one run. */
const TIME_LIMIT_MS = 300_000;

/** Parses the arguments: `steps` or `sequential`, and the data location. */
export function readArgs() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      place: { type: "string" },
      runs: { type: "string" },
      "in-flight": { type: "string", default: "1" },
    },
  });
  const [load] = positionals;
  if (!["steps", "sequential"].includes(load)) throw new Error(`unknown load ${load}; use steps or sequential`);
  const inFlight = load === "steps" ? number(values, "in-flight") : 1;
  return { load, inFlight, runs: number(values, "runs"), place: values.place };
}

function number(values, name) {
  const value = Number(values[name]);
  if (!Number.isSafeInteger(value) || value < 1) throw new Error(`--${name} ${values[name]} is not a positive integer`);
  return value;
}

/** Runs the load and prints the figures as one JSON object. `run(n)` starts run `n` and waits for its
 * result, which is `n` plus one for each step. */
export async function measure({ load, runs, inFlight }, run) {
  if (load === "steps") {
    await drive(run, 0, Math.min(Math.max(Math.floor(runs / 10), 1), 5_000), inFlight);
  }
  const { seconds, times } = await drive(run, MEASURED, runs, inFlight);
  times.sort((a, b) => a - b);
  console.log(
    JSON.stringify({
      runs_per_s: runs / seconds,
      p50_ms: percentile(times, 0.5),
      p99_ms: percentile(times, 0.99),
    }),
  );
}

async function drive(run, first, runs, inFlight) {
  const times = [];
  let next = first;
  const call = async () => {
    while (next < first + runs) {
      const n = next++;
      const callStarted = performance.now();
      const sum = await withTimeout(n, run(n));
      times.push(performance.now() - callStarted);
      if (sum !== n + STEPS) throw new Error(`run ${n} returned ${sum} instead of ${n + STEPS}`);
    }
  };
  const started = performance.now();
  await Promise.all(Array.from({ length: Math.min(inFlight, runs) }, call));
  return { seconds: (performance.now() - started) / 1e3, times };
}

async function withTimeout(n, result) {
  let timer;
  const timeout = new Promise((_, reject) => {
    const error = new Error(`run ${n} timed out after ${TIME_LIMIT_MS} ms`);
    timer = setTimeout(reject, TIME_LIMIT_MS, error);
  });
  try {
    return await Promise.race([result, timeout]);
  } finally {
    clearTimeout(timer);
  }
}

function percentile(sorted, share) {
  return sorted[Math.max(Math.ceil(sorted.length * share) - 1, 0)];
}
