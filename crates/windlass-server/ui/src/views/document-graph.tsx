// A definition as a graph: what is planned, what a run has taken, and where its tokens are.
import { useQuery } from "@tanstack/react-query";
import type { Schemas } from "../api/client";
import { at, call } from "../api/raw";
import type { Compiled, Position } from "../contracts";
import type { Edge, Graph, Node } from "../graph/model";
import { GraphView } from "../graph/view";
import { Loaded } from "../parts";

type Row = Schemas["TimelineRow"];

export function definitionGraph(compiled: Compiled, rows: Row[] | undefined, position?: Position): Graph {
  // The key of a step begins with its node.
  const taken = new Map((rows ?? []).map((row) => [row.stepKey.split("|")[0], row.state]));
  const tokens = new Map<string, number>();
  for (const token of position?.tokens ?? []) {
    if (["active", "waiting"].includes(token.state)) {
      tokens.set(token.node, (tokens.get(token.node) ?? 0) + 1);
    }
  }
  const isRun = rows !== undefined;
  const nodes = Object.values(compiled.nodes).map((node): Node => {
    const count = tokens.get(node.id) ?? 0;
    const owner = compiled.slotMap[node.id];
    const origin = owner && owner !== "envelope" ? (compiled.patchOrigins[owner] ?? owner) : "envelope";
    return {
      id: node.id,
      label: node.label ?? node.id.split(":").slice(-1)[0],
      hint: `${node.type} · ${origin}${count > 0 ? ` · ${count} ${count === 1 ? "token" : "tokens"}` : ""}`,
      state: count > 0 ? "token" : (taken.get(node.id) ?? "planned"),
      count: 1,
      planned: isRun && !taken.has(node.id) && count === 0,
    };
  });
  // Edges that lead back are no part of the order; the layout needs a graph without cycles.
  const edges = Object.values(compiled.edgesById)
    .filter((edge) => !edge.return)
    .map(
      (edge): Edge => ({
        from: edge.source,
        to: edge.target,
        label: edge.label ?? edge.condition,
        planned: isRun && !(taken.has(edge.source) && taken.has(edge.target)),
      }),
    );
  return { nodes, edges, cut: false };
}

/** The definition that a document is pinned to; what is published later does not change it. */
export function DocumentGraph({ type, id, rows }: { type: string; id: string; rows?: Row[] }) {
  const pinned = useQuery({
    queryKey: ["lists", "document-workflow", type, id],
    // A restart of the run keeps the definition too.
    staleTime: 60_000,
    retry: false,
    queryFn: ({ signal }) => call<Compiled>(at("documents", type, id, "workflow"), { signal }),
  });
  const position = useQuery({
    queryKey: ["lists", "position", type, id],
    retry: false,
    queryFn: ({ signal }) => call<Position>(at("documents", type, id, "position"), { signal }),
  });
  return (
    <Loaded query={pinned}>
      {(data) => (
        <>
          <p className="dim small">
            {position.data && `State ${position.data.state}, cycle ${position.data.cycle}. `}
            Dashed nodes and arrows are planned, the others were taken. The graph is the definition that this
            document is pinned to. <span className="mono wrap">{data.hash}</span>
          </p>
          <GraphView graph={definitionGraph(data, rows ?? [], position.data)} label="Definition" />
        </>
      )}
    </Loaded>
  );
}
