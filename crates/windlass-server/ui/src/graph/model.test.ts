import { describe, expect, it } from "vitest";
import type { Schemas } from "../api/client";
import { NODES_MAX, type Node, runGraph, stepGraph } from "./model";

const root: Node = { id: "run", label: "run", hint: "", state: "active", count: 1 };
const time = (ms: number) => new Date(ms).toISOString();

function row(name: string, from: number, to: number | null, more: object = {}): Schemas["TimelineRow"] {
  return {
    stepKey: name,
    name,
    kind: "step",
    role: "work",
    state: to === null ? "running" : "completed",
    position: from,
    beganAt: time(from),
    endedAt: to === null ? null : time(to),
    attempts: 1,
    maxAttempts: 1,
    tries: [],
    ...more,
  } as Schemas["TimelineRow"];
}

const arrows = (rows: Schemas["TimelineRow"][]) =>
  stepGraph(root, rows, [], 1000, false).edges.map((edge) => `${edge.from}>${edge.to}`);

describe("stepGraph", () => {
  it("draws a chain, a fork and a join", () => {
    expect(arrows([row("a", 0, 1), row("b", 1, 5), row("c", 2, 4), row("d", 5, null)])).toEqual([
      "run>a",
      "a>b",
      "a>c",
      "b>d",
      "c>d",
    ]);
  });
  it("orders steps of the same instant", () => {
    expect(arrows([row("a", 5, 5), row("b", 5, 5)])).toEqual(["run>a", "a>b"]);
  });
  it("folds siblings, and keeps the state that needs a look", () => {
    const rows = Array.from({ length: 20 }, (_, n) => row(`square-${n}`, 0, n === 3 ? null : 10));
    const graph = stepGraph(root, rows, [], 1000, false);
    expect(graph.nodes).toHaveLength(2);
    expect(graph.nodes[1]).toMatchObject({ label: "square-#", count: 20, state: "running" });
    expect(stepGraph(root, rows, [], 1000, true).nodes).toHaveLength(21);
  });
  it("is never larger than what can be drawn", () => {
    const letters = (n: number) => [...String(n)].map((digit) => "abcdefghij"[Number(digit)]).join("");
    const rows = Array.from({ length: 1000 }, (_, n) => row(letters(n), n, n + 1));
    const graph = stepGraph(root, rows, [], 2000, true);
    expect(graph.nodes).toHaveLength(NODES_MAX);
    expect(graph.cut).toBe(true);
  });
});

describe("runGraph", () => {
  it("links children to their parents", () => {
    const run = (runKey: string, parent: string | null) =>
      ({ runKey, parent, id: runKey, workflowName: "w", status: "active" }) as Schemas["TreeRun"];
    const graph = runGraph([run("a", null), run("b", "a"), run("c", "gone")], "b");
    expect(graph.edges).toEqual([{ from: "a", to: "b", label: undefined }]);
    expect(graph.nodes[1].hint).toContain("this run");
  });
});
