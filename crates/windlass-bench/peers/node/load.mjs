// The load that every peer on Node is put under: the same as that of the crate `peers-load`.

import { parseArgs } from "node:util";

/** Steps a run. */
export const STEPS = 3;
/** Where the numbers of the measured runs begin; those below are warming up. */
const MEASURED = 1_000_000_000;
/** The longest that one run may take before the whole peer counts as stuck. */
const PATIENCE_MS = 300_000;

/** The program's arguments: `steps` or `sequential`, and where the peer keeps its data. */
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
  if (!["steps", "sequential"].includes(load)) throw new Error(`no load is called ${load}`);
  const inFlight = load === "steps" ? number(values, "in-flight") : 1;
  return { load, inFlight, runs: number(values, "runs"), place: values.place };
}

function number(values, name) {
  const value = Number(values[name]);
  if (!Number.isSafeInteger(value) || value < 1) throw new Error(`--${name} ${values[name]}: no count`);
  return value;
}

/** Puts the peer under the load and prints the figures as one JSON object. `run(n)` starts run `n`
 * and waits for its result, which is `n` plus one for each step. */
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
      const begun = performance.now();
      const sum = await patiently(n, run(n));
      times.push(performance.now() - begun);
      if (sum !== n + STEPS) throw new Error(`run ${n} gave ${sum}, not ${n + STEPS}`);
    }
  };
  const started = performance.now();
  await Promise.all(Array.from({ length: Math.min(inFlight, runs) }, call));
  return { seconds: (performance.now() - started) / 1e3, times };
}

async function patiently(n, result) {
  let timer;
  const late = new Promise((_, reject) => {
    const error = new Error(`run ${n} is not done after ${PATIENCE_MS} ms`);
    timer = setTimeout(reject, PATIENCE_MS, error);
  });
  try {
    return await Promise.race([result, late]);
  } finally {
    clearTimeout(timer);
  }
}

function percentile(sorted, share) {
  return sorted[Math.max(Math.ceil(sorted.length * share) - 1, 0)];
}
