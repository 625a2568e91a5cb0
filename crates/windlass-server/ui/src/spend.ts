// Money and tokens of agents: sums by day, model or workflow. Money is in billionths of a dollar, a whole number.
import { isNumber } from "./json";

export type Usage = {
  input_tokens: number;
  output_tokens: number;
  cache_creation_input_tokens?: number;
  cache_read_input_tokens?: number;
};
export type Spend = {
  day: string;
  workflow: string;
  provider: string;
  model: string;
  lane: string;
  calls: number;
  usage: Usage;
  cost: number;
  unpriced_calls: number;
  uncertain_calls: number;
  uncertain_cost: number;
};
export const spendKeys = ["day", "model", "workflow"] as const;
export type SpendKey = (typeof spendKeys)[number];
export type SpendSum = {
  key: string;
  calls: bigint;
  input: bigint;
  output: bigint;
  cost: bigint;
  unpriced: bigint;
  uncertain: bigint;
  uncertainCost: bigint;
};

/** A whole number of any size; zero for anything else. */
export function whole(value: unknown): bigint {
  const text = isNumber(value) ? String(value) : "";
  return /^-?\d+$/.test(text) ? BigInt(text) : 0n;
}

/** Dollars with six digits after the point, rounded up as the server does. */
export function formatUsd(nanos: unknown): string {
  const sum = typeof nanos === "bigint" ? nanos : whole(nanos);
  const micros = (sum + 999n) / 1000n;
  const dollars = (micros / 1_000_000n).toLocaleString("en");
  return `$${dollars}.${String(micros % 1_000_000n).padStart(6, "0")}`;
}

/** Figures added up by one of their names: days newest first, the others with the highest cost first. */
export function sumSpend(rows: Spend[], by: SpendKey): SpendSum[] {
  const sums = new Map<string, SpendSum>();
  for (const row of rows) {
    const key = by === "model" ? `${row.provider} ${row.model}` : row[by];
    const zero = {
      calls: 0n,
      input: 0n,
      output: 0n,
      cost: 0n,
      unpriced: 0n,
      uncertain: 0n,
      uncertainCost: 0n,
    };
    const sum = sums.get(key) ?? { key, ...zero };
    const usage = row.usage;
    sum.calls += whole(row.calls);
    sum.input +=
      whole(usage.input_tokens) +
      whole(usage.cache_creation_input_tokens) +
      whole(usage.cache_read_input_tokens);
    sum.output += whole(usage.output_tokens);
    sum.cost += whole(row.cost);
    sum.unpriced += whole(row.unpriced_calls);
    sum.uncertain += whole(row.uncertain_calls);
    sum.uncertainCost += whole(row.uncertain_cost);
    sums.set(key, sum);
  }
  const compare = (a: SpendSum, b: SpendSum) => {
    if (by !== "day" && a.cost !== b.cost) return a.cost < b.cost ? 1 : -1;
    const order = a.key < b.key ? -1 : 1;
    return by === "day" ? -order : order;
  };
  return [...sums.values()].sort(compare);
}

/** The day so many days before a time, as the routes name days. */
export function dayBefore(now: number, days: number): string {
  return new Date(now - days * 86_400_000).toISOString().slice(0, 10);
}
