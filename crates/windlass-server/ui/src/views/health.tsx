// The health of document runs: what waits, what is stuck, what failed, and the ways to repair it.
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { api, ok, type Schemas } from "../api/client";
import { at, call, useRoute } from "../api/raw";
import { queries, useMay, useMe } from "../app";
import { NoTypes, useTypes, WithContracts } from "../contracts";
import { formatCount, formatDuration } from "../format";
import { Act, Card, Loaded, Status, Time } from "../parts";
import { RunLink } from "./run";

/** The most runs of one kind that the view lists. */
const LISTED = 25;

export function Health() {
  const types = useTypes();
  return (
    <WithContracts title="Contracts health">
      <Loaded query={types}>
        {(data) =>
          data.types.length === 0 ? (
            <NoTypes />
          ) : (
            <>
              <Figures />
              {data.types.map((one) => (
                <OfType key={one.entityType} type={one.entityType} />
              ))}
            </>
          )
        }
      </Loaded>
    </WithContracts>
  );
}

type Figures = {
  pending: number;
  oldestPendingSeconds?: number | null;
  errored: number;
  stuck: number;
  deadEffects: number;
  advances: number;
  advanceP95Ms?: number | null;
  retries: number;
  nodes: { nodeType: string; count: number; p50Ms: number; p95Ms: number }[];
};
type Stuck = { type?: string; entityType?: string; id: string; state: string; reason: string };

// The figures that the server computes, if it has them.
function Figures() {
  const has = useRoute("/contracts/health").data === true;
  const health = useQuery({
    queryKey: ["lists", "contracts-health"],
    enabled: has,
    queryFn: ({ signal }) => call<Figures>("/contracts/health", { signal }),
  });
  const stuck = useQuery({
    queryKey: ["lists", "contracts-stuck"],
    enabled: has,
    queryFn: ({ signal }) => call<{ stuck: Stuck[] }>("/contracts/stuck", { signal }),
  });
  if (!has) return null;
  return (
    <>
      <Loaded query={health}>
        {(data) => (
          <>
            <div className="figures">
              <Figure label="Pending" value={String(data.pending)} />
              <Figure
                label="Oldest pending"
                value={
                  data.oldestPendingSeconds === null || data.oldestPendingSeconds === undefined
                    ? "–"
                    : formatDuration(data.oldestPendingSeconds * 1000)
                }
              />
              <Figure label="Stuck" value={String(data.stuck)} bad={data.stuck > 0} />
              <Figure label="Failed" value={String(data.errored)} bad={data.errored > 0} />
              <Figure label="Dead effects" value={String(data.deadEffects)} bad={data.deadEffects > 0} />
              <Figure
                label="p95 of an advance"
                value={
                  data.advanceP95Ms === null || data.advanceP95Ms === undefined
                    ? "–"
                    : formatDuration(data.advanceP95Ms)
                }
              />
            </div>
            <Nodes nodes={data.nodes} />
          </>
        )}
      </Loaded>
      <Card title="Stuck">
        <Loaded query={stuck}>
          {(data) =>
            data.stuck.length === 0 ? (
              <p className="dim">No document needs an operator.</p>
            ) : (
              <ul className="messages">
                {data.stuck.map((one) => (
                  <StuckRow key={`${typeOf(one)}/${one.id}`} stuck={one} />
                ))}
              </ul>
            )
          }
        </Loaded>
      </Card>
    </>
  );
}

function typeOf(stuck: Stuck): string {
  return stuck.type ?? stuck.entityType ?? "";
}

function Figure({ label, value, bad = false }: { label: string; value: string; bad?: boolean }) {
  return (
    <div className="figure">
      <span className="dim small">{label}</span>
      <strong className={bad ? "bad" : undefined}>{value}</strong>
    </div>
  );
}

function Nodes({ nodes }: { nodes: Figures["nodes"] }) {
  if (nodes.length === 0) return null;
  return (
    <Card title="Nodes of this process">
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard. */}
      <section className="scroll" tabIndex={0} aria-label="Nodes">
        <table>
          <thead>
            <tr>
              <th>Type</th>
              <th className="number">Ended</th>
              <th className="number">p50</th>
              <th className="number">p95</th>
            </tr>
          </thead>
          <tbody>
            {nodes.map((node) => (
              <tr key={node.nodeType}>
                <td>{node.nodeType}</td>
                <td className="number">{String(node.count)}</td>
                <td className="number">{formatDuration(node.p50Ms)}</td>
                <td className="number">{formatDuration(node.p95Ms)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </Card>
  );
}

function StuckRow({ stuck }: { stuck: Stuck }) {
  const may = useMay();
  const { subject } = useMe();
  const [reason, setReason] = useState("");
  const type = typeOf(stuck);
  const path = (act: string) => at("documents", type, stuck.id, act);
  const done = () => queries.invalidateQueries({ queryKey: ["lists"] });
  return (
    <li>
      <Link to="/documents" search={{ type, id: stuck.id }}>
        {type}/{stuck.id}
      </Link>{" "}
      <span className="status">{stuck.state}</span> {stuck.reason}
      {may("manage") && (
        <div className="actions">
          <Act
            label="Advance again"
            act={() => call(path("advance"), { method: "POST", body: {} })}
            done={done}
          />
          {subject && (
            <Act
              label="Force fail"
              danger
              ask={
                <label className="form">
                  The run of {type}/{stuck.id} fails for good. Why?
                  <input value={reason} onChange={(event) => setReason(event.target.value)} />
                </label>
              }
              act={() => call(path("fail"), { method: "POST", body: { reason } })}
              done={done}
            />
          )}
        </div>
      )}
    </li>
  );
}

type Run = Schemas["RunSummary"];

function useRuns(workflow: string, status: string, order: "asc" | "desc") {
  return useQuery({
    queryKey: ["lists", "health", workflow, status],
    queryFn: ({ signal }) =>
      ok(
        api.GET("/runs", {
          signal,
          params: { query: { workflow, status: [status], order, pageSize: LISTED } },
        }),
      ),
  });
}

// Runs of documents are runs of the workflow `doc:<type>`.
function OfType({ type }: { type: string }) {
  const workflow = `doc:${type}`;
  const workflows = useQuery({
    queryKey: ["lists", "workflows"],
    queryFn: ({ signal }) => ok(api.GET("/workflows", { signal })),
  });
  const counts = workflows.data?.workflows.find((one) => one.name === workflow)?.counts ?? {};
  const waiting = useRuns(workflow, "waiting", "asc");
  const active = useRuns(workflow, "active", "asc");
  const failed = useRuns(workflow, "errored", "desc");
  const oldest = waiting.data?.runs[0];
  const figure = (status: string) => formatCount({ count: Number(counts[status] ?? 0), more: false });
  return (
    <Card
      title={type}
      aside={
        <Link to="/documents" search={{ type }}>
          Its documents
        </Link>
      }
    >
      <dl className="facts">
        <Fact name="Wait for people or events">{figure("waiting")}</Fact>
        <Fact name="In progress">{figure("active")}</Fact>
        <Fact name="Failed">
          <span className={counts.errored ? "bad" : undefined}>{figure("errored")}</span>
        </Fact>
        <Fact name="Ended">{figure("complete")}</Fact>
        <Fact name="Oldest that waits">{oldest ? <Time at={oldest.createdAt} /> : "–"}</Fact>
      </dl>
      <h3>Failed</h3>
      <Loaded query={failed}>
        {(data) => <Runs type={type} runs={data.runs} none="No document run has failed." />}
      </Loaded>
      <h3>In progress, oldest first</h3>
      <Loaded query={active}>{(data) => <Runs type={type} runs={data.runs} none="None." />}</Loaded>
      <h3>Waiting, oldest first</h3>
      <Loaded query={waiting}>{(data) => <Runs type={type} runs={data.runs} none="None." />}</Loaded>
    </Card>
  );
}

function Fact({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function Runs({ type, runs, none }: { type: string; runs: Run[]; none: string }) {
  if (runs.length === 0) return <p className="dim small">{none}</p>;
  return (
    <ul className="messages">
      {runs.map((run) => (
        <li key={run.runKey}>
          <Status status={run.details.status} /> <RunLink run={run} />{" "}
          <span className="dim small">
            since <Time at={run.createdAt} />
          </span>
          {run.details.error && <span className="bad"> {run.details.error.message}</span>}
          <Acts type={type} run={run} />
        </li>
      ))}
    </ul>
  );
}

function Acts({ type, run }: { type: string; run: Run }) {
  const may = useMay();
  const [checked, setChecked] = useState<{ same: boolean; steps: number } | null>(null);
  const params = { path: { workflowName: run.workflowName, instanceId: run.id } };
  const done = () => queries.invalidateQueries({ queryKey: ["lists"] });
  const status = run.details.status;
  return (
    <div className="actions">
      {may("records") && (
        <Act
          label="Rebuild and compare"
          act={async () =>
            setChecked(await call(at("documents", type, run.id, "rebuild"), { method: "POST", body: {} }))
          }
        />
      )}
      {checked && (
        <span role="status" className={checked.same ? "good" : "bad"}>
          {checked.same ? `follows from its ${checked.steps} steps` : "differs from its steps"}
        </span>
      )}
      {may("manage") && status === "errored" && (
        <Act
          label="Advance again"
          ask={<p>A new generation goes on from the state before the failure.</p>}
          act={() => ok(api.POST("/workflows/{workflowName}/instances/{instanceId}/retry", { params }))}
          done={done}
        />
      )}
      {may("manage") && ["active", "waiting"].includes(status) && (
        <Act
          label="Terminate"
          danger
          ask={<p>The run of this document ends at once. The document keeps its state.</p>}
          act={() =>
            ok(api.POST("/workflows/{workflowName}/instances/{instanceId}/terminate", { params, body: null }))
          }
          done={done}
        />
      )}
    </div>
  );
}
