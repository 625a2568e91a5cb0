import { expect, test } from "vitest";
import { readRunSearch } from "./views/run-search";

test("the address of a run keeps its filters", () => {
  const search = {
    tab: "logs",
    generation: 2,
    step: "pay",
    level: "warn",
    find: "card",
    lines: "pay",
  } as const;
  expect(readRunSearch(search)).toMatchObject(search);
  const ledger = { tab: "ledger", event: "step.failed", scope: "root" } as const;
  expect(readRunSearch(ledger)).toMatchObject(ledger);
  expect(readRunSearch({ show: "failed" }).show).toBe("failed");
  expect(readRunSearch({ find: 404 }).find).toBe("404");
});

test("what an address cannot mean is left out", () => {
  const read = readRunSearch({
    tab: "x",
    show: "all",
    scope: "run",
    level: "loud",
    event: "",
    generation: "1",
  });
  expect(Object.values(read).every((value) => value === undefined)).toBe(true);
});
