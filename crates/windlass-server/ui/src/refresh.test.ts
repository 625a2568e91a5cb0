import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Refresher } from "./refresh";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

function setup(tookMs: number, pauseMs = 1000) {
  const reads: [string, number][] = [];
  const began = Date.now();
  const reading = new Set<string>();
  const reader = {
    isReading: (key: string) => reading.has(key),
    read: (key: string) => {
      reads.push([key, Date.now() - began]);
      return new Promise((done) => setTimeout(done, tookMs));
    },
  };
  return { reads, reading, refresher: new Refresher(reader, pauseMs) };
}

test("the first hint reads at once, further ones at most once a second", async () => {
  const { reads, refresher } = setup(10);
  for (let hint = 0; hint < 30; hint += 1) {
    refresher.ask("lists");
    await vi.advanceTimersByTimeAsync(100);
  }
  await vi.advanceTimersByTimeAsync(5000);
  // The last hint came at 2,900 ms.
  expect(reads).toEqual([0, 1000, 2000, 3000].map((at) => ["lists", at]));
});

test("a slow read is not started twice, and one more follows it", async () => {
  const { reads, refresher } = setup(2500);
  for (let hint = 0; hint < 20; hint += 1) {
    refresher.ask("lists");
    await vi.advanceTimersByTimeAsync(100);
  }
  await vi.advanceTimersByTimeAsync(10_000);
  expect(reads.map(([, at]) => at)).toEqual([0, 2500]);
});

test("a read that began before the hint is followed by another one", async () => {
  const { reads, reading, refresher } = setup(10);
  reading.add("lists");
  refresher.ask("lists");
  reading.clear();
  await vi.advanceTimersByTimeAsync(5000);
  expect(reads.map(([, at]) => at)).toEqual([0, 1000]);
});

test("keys do not wait for each other, and a failed read does not end the work", async () => {
  const { reads, refresher } = setup(10);
  refresher.ask("lists");
  refresher.ask("run");
  expect(reads.map(([key]) => key)).toEqual(["lists", "run"]);
  let failed = 0;
  const lost = () => {
    failed += 1;
    return Promise.reject(new Error("the connection is lost"));
  };
  const failing = new Refresher({ isReading: () => false, read: lost }, 100);
  for (let hint = 0; hint < 2; hint += 1) {
    failing.ask("a");
    await vi.advanceTimersByTimeAsync(1000);
  }
  expect(failed).toBe(2);
});
