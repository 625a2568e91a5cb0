import { expect, test } from "vitest";
import { scaleOf } from "./scale";

test("a scale without gaps is linear", () => {
  const { x, folds } = scaleOf([{ from: 0, to: 100 }], 0, 100);
  expect([x(0), x(50), x(100), folds.length]).toEqual([0, 0.5, 1, 0]);
});

test("a long gap is folded and order is kept", () => {
  const spans = [
    { from: 0, to: 1000 },
    { from: 86_400_000, to: 86_401_000 },
  ];
  const { x, folds } = scaleOf(spans, 0, 86_401_000);
  expect(folds.length).toBe(1);
  expect(x(1000)).toBeCloseTo(0.48);
  expect(x(86_400_000)).toBeCloseTo(0.52);
  expect(x(86_401_000)).toBeCloseTo(1);
  expect(x(40_000_000)).toBeGreaterThan(x(1000));
});

test("a run without work has a scale", () => {
  const { x } = scaleOf([], 5, 5);
  expect(x(5)).toBe(0);
});
