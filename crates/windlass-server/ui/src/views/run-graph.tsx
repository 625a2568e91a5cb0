// The graph of a run: its steps with forks, joins and children; the tree of its runs; for a document, its
// definition with the tokens of the run.
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, ok, type Schemas } from "../api/client";
import { useMay, useMe, useNow } from "../app";
import { type Node, runGraph, stepGraph } from "../graph/model";
import { GraphView } from "../graph/view";
import { Empty, Loaded } from "../parts";
import { DocumentGraph } from "./document-graph";
import type { RunRef } from "./run";

export function GraphTab({ run, data }: { run: RunRef; data: Schemas["InstanceView"] }) {
  const path = { workflowName: run.workflowName, instanceId: run.instanceId };
  const navigate = useNavigate();
  const may = useMay();
  const { routeSets } = useMe();
  const clock = useNow(!run.ended);
  const now = run.ended && data.meta.completedAt ? Date.parse(data.meta.completedAt) : clock;
  const [unfold, setUnfold] = useState(false);
  const [what, setWhat] = useState<"steps" | "runs">("steps");
  const timeline = useQuery({
    queryKey: ["run", run.runKey, "graph", run.generation],
    queryFn: ({ signal }) =>
      ok(
        api.GET("/workflows/{workflowName}/instances/{instanceId}/timeline", {
          signal,
          params: { path, query: { runNumber: run.generation } },
        }),
      ),
  });
  const tree = useQuery({
    queryKey: ["run", run.runKey, "tree"],
    queryFn: ({ signal }) =>
      ok(
        api.GET("/workflows/{workflowName}/instances/{instanceId}/tree", {
          signal,
          params: { path, query: { pageSize: 100 } },
        }),
      ),
  });
  const runs = tree.data?.runs ?? [];
  const others: Node[] = runs
    .filter((one) => one.parent === run.runKey && run.generation === undefined)
    .map((one) => ({
      id: one.runKey,
      label: one.id,
      hint: `${one.fork ?? "child"} · ${one.workflowName}`,
      state: one.status,
      run: one,
      fork: one.fork ?? undefined,
      count: 1,
    }));
  const open = (node: Node) => {
    if (node.run) {
      navigate({
        to: "/runs/$workflow/$id",
        params: { workflow: node.run.workflowName, id: node.run.id },
        search: { tab: "graph" },
      });
    } else if (node.step) {
      navigate({
        to: "/runs/$workflow/$id",
        params: { workflow: run.workflowName, id: run.instanceId },
        search: { step: node.step, generation: run.generation },
      });
    } else if (node.count > 1) setUnfold(true);
  };
  const isDocument = data.meta.model === "contracts" && run.workflowName.startsWith("doc:");
  // Without its routes, or the right to read documents, the graph is that of the steps.
  const hasDocuments = routeSets.includes("contracts");
  if (isDocument && hasDocuments && may("records")) {
    return <DocumentGraph type={run.workflowName.slice(4)} id={run.instanceId} rows={timeline.data?.rows} />;
  }
  return (
    <Loaded query={timeline}>
      {(steps) => {
        const root: Node = {
          id: "run",
          label: run.instanceId,
          hint: `${run.workflowName} · generation ${steps.runNumber}`,
          state: data.details.status,
          count: 1,
        };
        const graph =
          what === "runs" ? runGraph(runs, run.runKey) : stepGraph(root, steps.rows, others, now, unfold);
        const hasFolded = graph.nodes.some((node) => node.count > 1);
        return (
          <>
            {isDocument && (
              <p className="notice">
                {hasDocuments ? (
                  <>
                    The definition of the document needs a key with the scope <code>records</code>.
                  </>
                ) : (
                  "This server has no routes of documents, so it cannot show the definition."
                )}
              </p>
            )}
            <div className="chips">
              {(["steps", "runs"] as const).map((word) => (
                <button
                  key={word}
                  type="button"
                  className="chip"
                  aria-pressed={what === word}
                  onClick={() => setWhat(word)}
                >
                  {word === "steps" ? "steps of this run" : `tree of runs (${runs.length})`}
                </button>
              ))}
              {what === "steps" && (hasFolded || unfold) && (
                <button type="button" onClick={() => setUnfold(!unfold)}>
                  {unfold ? "Fold siblings" : "Unfold siblings"}
                </button>
              )}
              {(steps.hasNextPage || graph.cut) && (
                <span className="dim small">The graph has only the first steps; the timeline has all.</span>
              )}
            </div>
            {graph.nodes.length < 2 && what === "steps" ? (
              <Empty title="No step yet">
                <p>Steps appear here when something about them was recorded.</p>
              </Empty>
            ) : (
              <GraphView
                graph={graph}
                label={what === "steps" ? "Steps of the run" : "Tree of runs"}
                open={open}
              />
            )}
            {what === "steps" && (
              <p className="dim small">An arrow leads to the steps that began after a step had ended.</p>
            )}
          </>
        );
      }}
    </Loaded>
  );
}
