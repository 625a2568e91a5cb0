// The graph of a run from its timeline: an arrow leads from a step to those that began after it had ended.
import type { Schemas } from "../api/client";

type Row = Schemas["TimelineRow"];
export type Target = { workflowName: string; id: string };
export type Node = {
  id: string;
  label: string;
  hint: string;
  state: string;
  /** The step that the node opens; none for the run itself and for folded steps. */
  step?: string;
  run?: Target;
  /** How many steps the node stands for. */
  count: number;
  planned?: boolean;
  /** The step that has started this run. */
  fork?: string;
};
export type Edge = { from: string; to: string; label?: string; planned?: boolean };
export type Graph = { nodes: Node[]; edges: Edge[]; cut: boolean };

/** The most nodes that are laid out and drawn. */
export const NODES_MAX = 200;
/** Siblings with the same name are one node if there are more than this. */
const FOLD_FROM = 6;

type Span = { node: Node; from: number; to: number };

export function stepGraph(root: Node, rows: Row[], others: Node[], now: number, unfold: boolean): Graph {
  const groups = new Map<string, Row[]>();
  for (const row of rows) {
    const key = `${row.role} ${folded(row.name)}`;
    groups.set(key, [...(groups.get(key) ?? []), row]);
  }
  const mayUnfold = unfold && rows.length <= NODES_MAX;
  const fold = (group: Row[]) => !mayUnfold && group.length > (rows.length > NODES_MAX ? 1 : FOLD_FROM);
  const spans: Span[] = [];
  for (const group of groups.values()) {
    if (fold(group)) spans.push(spanOf(foldedNode(group), group, now));
    else for (const row of group) spans.push(spanOf(rowNode(row, others), [row], now));
  }
  spans.sort((a, b) => a.from - b.from || a.to - b.to);
  const kept = spans.slice(0, NODES_MAX - 1 - Math.min(others.length, 50));
  const edges: Edge[] = [];
  kept.forEach((span, index) => {
    const before = kept.slice(0, index).filter((one) => one.to <= span.from);
    const direct = before.filter((one, at) => !before.slice(at + 1).some((later) => one.to <= later.from));
    for (const one of direct) edges.push({ from: one.node.id, to: span.node.id });
    if (direct.length === 0) edges.push({ from: root.id, to: span.node.id });
  });
  const keys = new Set(rows.map((row) => row.stepKey));
  const linked = new Set(rows.flatMap((row) => (row.child ? [row.child.runKey] : [])));
  // A child whose step is drawn is that step.
  for (const node of others) if (node.fork !== undefined && keys.has(node.fork)) linked.add(node.id);
  const forks = others.filter((node) => !linked.has(node.id)).slice(0, 50);
  for (const node of forks) edges.push({ from: root.id, to: node.id, label: "fork" });
  return {
    nodes: [root, ...kept.map((span) => span.node), ...forks],
    edges,
    cut: kept.length < spans.length || forks.length < others.filter((node) => !linked.has(node.id)).length,
  };
}

/** Names of siblings differ by their numbers. */
function folded(name: string): string {
  return name.replace(/\d+/g, "#");
}

function rowNode(row: Row, others: Node[]): Node {
  const child = others.find((node) => node.fork === row.stepKey);
  return {
    id: row.stepKey,
    label: row.name,
    hint: row.role === "work" ? tries(row) : row.kind,
    state: row.state,
    step: row.stepKey,
    run: row.child ?? child?.run,
    count: 1,
  };
}

function tries(row: Row): string {
  return row.attempts > 1 ? `${row.attempts} attempts` : row.kind;
}

// The state that most needs a look wins.
const urgency = ["errored", "running", "waiting", "pending", "cancelled", "skipped", "completed"];

function foldedNode(group: Row[]): Node {
  const state = urgency.find((state) => group.some((row) => row.state === state)) ?? group[0].state;
  const done = group.filter((row) => row.state === "completed").length;
  return {
    id: `fold ${group[0].stepKey}`,
    label: folded(group[0].name),
    hint: `${group.length} steps, ${done} completed`,
    state,
    count: group.length,
  };
}

function spanOf(node: Node, rows: Row[], now: number): Span {
  const from = Math.min(...rows.map((row) => Date.parse(row.beganAt)));
  const to = Math.max(...rows.map((row) => (row.endedAt ? Date.parse(row.endedAt) : now)));
  return { node, from, to };
}

/** The graph of a tree of runs. */
export function runGraph(runs: Schemas["TreeRun"][], current: string): Graph {
  const shown = runs.slice(0, NODES_MAX);
  const known = new Set(shown.map((run) => run.runKey));
  return {
    nodes: shown.map((run) => ({
      id: run.runKey,
      label: run.id,
      hint: `${run.workflowName}${run.runKey === current ? " · this run" : ""}`,
      state: run.status,
      run: { workflowName: run.workflowName, id: run.id },
      count: 1,
    })),
    edges: shown.flatMap((run) =>
      run.parent && known.has(run.parent)
        ? [{ from: run.parent, to: run.runKey, label: run.fork ?? undefined }]
        : [],
    ),
    cut: shown.length < runs.length,
  };
}
