import { expect, test } from "vitest";
import { parseJson } from "./json";
import { dayBefore, formatUsd, type Spend, sumSpend } from "./spend";

const row = (day: string, workflow: string, model: string, cost: number): Spend => ({
  day,
  workflow,
  provider: "anthropic",
  model,
  lane: "live",
  calls: 2,
  usage: { input_tokens: 10, output_tokens: 5, cache_read_input_tokens: 1 },
  cost,
  unpriced_calls: 0,
  uncertain_calls: 1,
  uncertain_cost: 7,
});

test("money is exact and rounded up", () => {
  const cases: [unknown, string][] = [
    [0, "$0.000000"],
    [1, "$0.000001"],
    [1_000, "$0.000001"],
    [1_234_567_890, "$1.234568"],
    [parseJson("18446744073709551615"), "$18,446,744,073.709552"],
    ["x", "$0.000000"],
    [null, "$0.000000"],
  ];
  for (const [nanos, text] of cases) expect(formatUsd(nanos)).toBe(text);
});

test("figures are added up by day, model and workflow", () => {
  const rows = [
    row("2026-11-18", "ask", "small", 100),
    row("2026-11-19", "ask", "large", 900),
    row("2026-11-19", "sum", "small", 50),
  ];
  const keys = (by: "day" | "model" | "workflow") => sumSpend(rows, by).map((one) => [one.key, one.cost]);
  expect(keys("day")).toEqual([
    ["2026-11-19", 950n],
    ["2026-11-18", 100n],
  ]);
  expect(keys("model")).toEqual([
    ["anthropic large", 900n],
    ["anthropic small", 150n],
  ]);
  expect(keys("workflow")).toEqual([
    ["ask", 1000n],
    ["sum", 50n],
  ]);
  const [newest] = sumSpend(rows, "day");
  expect([newest.calls, newest.input, newest.output, newest.uncertain]).toEqual([4n, 22n, 10n, 2n]);
});

test("days", () => {
  expect(dayBefore(Date.parse("2026-03-01T01:00:00Z"), 1)).toBe("2026-02-28");
});
