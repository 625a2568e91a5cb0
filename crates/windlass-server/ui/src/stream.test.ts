import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Stream, type ToTab } from "./stream";

/** What the browser has, driven by the test. */
class Source extends EventTarget {
  static readonly CLOSED = 2;
  static all: Source[] = [];
  readyState = 0;

  constructor(readonly url: string) {
    super();
    Source.all.push(this);
  }

  open() {
    this.readyState = 1;
    this.dispatchEvent(new Event("open"));
  }

  hint(kind: string, runs: string[] = []) {
    this.dispatchEvent(new MessageEvent(kind, { data: JSON.stringify({ runs }) }));
  }

  fail(state: number) {
    this.readyState = state;
    this.dispatchEvent(new Event("error"));
  }

  close() {
    this.readyState = Source.CLOSED;
  }
}

beforeEach(() => {
  vi.useFakeTimers();
  Source.all = [];
  vi.stubGlobal("EventSource", Source);
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

function setup() {
  const sent: ToTab[] = [];
  const stream = new Stream((message) => sent.push(message));
  stream.follow("/live", []);
  Source.all[0].open();
  expect(sent.splice(0)).toEqual([{ kind: "state", state: "live" }]);
  return { sent, stream };
}

test("other runs are followed without an announcement", () => {
  const { sent, stream } = setup();
  stream.follow("/live", ["a@7"]);
  const [first, second] = Source.all;
  expect(second.url).toBe("/live?run=a%407");
  // Hints come from the first one until the second one is open.
  first.hint("lists");
  second.open();
  expect([first.readyState, second.readyState]).toEqual([Source.CLOSED, 1]);
  second.hint("run", ["a"]);
  expect(sent).toEqual([{ kind: "lists" }, { kind: "run", runs: ["a"] }]);
  // What was read of a run, the order and a repetition change nothing.
  stream.follow("/live", ["a@9", "a"]);
  expect(Source.all.length).toBe(2);
});

test("only the last of several changes is opened, and the open one goes on", () => {
  const { sent, stream } = setup();
  stream.follow("/live", ["a"]);
  stream.follow("/live", ["a", "b"]);
  expect(Source.all.map((one) => one.readyState)).toEqual([1, Source.CLOSED, 0]);
  Source.all[2].open();
  expect(Source.all.map((one) => one.readyState)).toEqual([Source.CLOSED, Source.CLOSED, 1]);
  expect(sent).toEqual([]);
});

test("a lost stream is announced and opened again", () => {
  const { sent, stream } = setup();
  stream.follow("/live", ["a"]);
  Source.all[1].fail(Source.CLOSED);
  vi.advanceTimersByTime(1000);
  Source.all[2].open();
  expect(sent.map((one) => "state" in one && one.state)).toEqual(["lost", "connecting", "live"]);
  expect(Source.all[0].readyState).toBe(Source.CLOSED);
});

test("a closed stream is announced when it is open again", () => {
  const { sent, stream } = setup();
  stream.follow("/live", null);
  stream.follow("/live", []);
  Source.all[1].open();
  expect(sent.map((one) => "state" in one && one.state)).toEqual(["connecting", "live"]);
});
