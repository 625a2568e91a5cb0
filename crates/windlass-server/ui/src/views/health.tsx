// The health of document runs: what waits, what is stuck, what failed, and the ways to repair it.
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { api, ok, type Schemas } from "../api/client";
import { at, call } from "../api/raw";
import { queries, useMay } from "../app";
import { NoTypes, useTypes, WithContracts } from "../contracts";
import { formatCount } from "../format";
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

type Run = Schemas["RunSummary"];

function useRuns(workflow: string, status: string, order: "asc" | "desc") {
  return useQuery({
    queryKey: ["lists", "health", workflow, status],
    queryFn: () =>
      ok(
        api.GET("/runs", {
          params: { query: { workflow, status: [status], order, pageSize: LISTED } },
        }),
      ),
  });
}

// Runs of documents are runs of the workflow `doc:<type>`.
function OfType({ type }: { type: string }) {
  const workflow = `doc:${type}`;
  const workflows = useQuery({ queryKey: ["lists", "workflows"], queryFn: () => ok(api.GET("/workflows")) });
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
