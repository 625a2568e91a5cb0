import { expect, test } from "vitest";
import { formatAgo, formatCount, formatDuration, formatTime, shellQuote, withTimes } from "./format";

test("durations", () => {
  const table: [number, string][] = [
    [0.4, "<1 ms"],
    [12, "12 ms"],
    [1500, "1.5 s"],
    [61_000, "1 min 1 s"],
    [3_700_000, "1 h 1 min"],
    [200_000_000, "2 days 7 h"],
  ];
  for (const [ms, text] of table) expect(formatDuration(ms)).toBe(text);
});

test("times, ages and counts", () => {
  expect(formatTime("2026-01-31T12:00:00.000Z", "utc")).toBe("2026-01-31 12:00:00Z");
  expect(formatTime("soon", "utc")).toBe("soon");
  expect(formatAgo("2026-01-31T12:00:00Z", Date.parse("2026-01-31T12:00:30Z"))).toBe("30 s ago");
  expect(formatAgo("2026-01-31T12:00:30Z", Date.parse("2026-01-31T12:00:00Z"))).toBe("in 30 s");
  expect(formatCount({ count: 10_000, more: true })).toBe("10,000+");
});

test("shell words", () => {
  expect(shellQuote("order-1")).toBe("order-1");
  expect(shellQuote("it's <b>")).toBe("'it'\\''s <b>'");
});

test("times in sentences", () => {
  expect(withTimes("waits since 2026-01-31T12:00:00.123456Z (7)", "utc")).toBe(
    "waits since 2026-01-31 12:00:00Z (7)",
  );
});
