import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { api, apiBase, ok, type Schemas } from "../api/client";
import { at } from "../api/raw";
import { queries, useFollow, useMay, useZone } from "../app";
import { shellQuote, withTimes } from "../format";
import { compactJson } from "../json";
import { Act, Copy, ExactTime, Loaded, Page, Status, Time } from "../parts";
import { SendEvent } from "../sendevent";
import { AgentTab } from "./run-agent";
import { DataTab } from "./run-data";
import { GraphTab } from "./run-graph";
import { LedgerTab } from "./run-ledger";
import { LogsTab } from "./run-logs";
import { WaitsForPeople } from "./run-people";
import { Receipts } from "./run-receipts";
import { type RunSearch, tabs } from "./run-search";
import { TimelineTab } from "./run-timeline";

export type RunRef = {
  workflowName: string;
  instanceId: string;
  runKey: string;
  generation?: number;
  ended: boolean;
};
type Instance = Schemas["InstanceView"];

export function RunView() {
  const { workflow, id } = useParams({ from: "/runs/$workflow/$id" });
  const search = useSearch({ from: "/runs/$workflow/$id" });
  const path = { workflowName: workflow, instanceId: id };
  const newest = useQuery({
    queryKey: ["instance", workflow, id],
    queryFn: ({ signal }) =>
      ok(api.GET("/workflows/{workflowName}/instances/{instanceId}", { signal, params: { path } })),
  });
  useFollow(newest.data ? [newest.data.meta.runKey] : [], newest.data?.meta.eventCount);
  return (
    <Page title={`${workflow}/${id}`}>
      <Loaded query={newest}>
        {(data) => {
          // A link may name the newest generation.
          const generation = search.generation === data.meta.runNumber ? undefined : search.generation;
          const run = {
            ...path,
            runKey: data.meta.runKey,
            generation,
            ended: data.meta.completedAt !== null && data.meta.completedAt !== undefined,
          };
          return (
            <>
              <Head data={data} generation={generation} />
              <nav className="tabs" aria-label="Parts of the run">
                {tabs
                  .filter((tab) => tab !== "agent" || data.meta.model === "agents")
                  .map((tab) => (
                    <Link
                      key={tab}
                      to="/runs/$workflow/$id"
                      params={{ workflow, id }}
                      search={{ ...search, tab: tab === "timeline" ? undefined : tab }}
                      activeOptions={{ includeSearch: true, explicitUndefined: true }}
                      aria-current={(search.tab ?? "timeline") === tab ? "page" : undefined}
                    >
                      {tab}
                    </Link>
                  ))}
              </nav>
              {(search.tab ?? "timeline") === "timeline" && <TimelineTab run={run} data={data} />}
              {search.tab === "graph" && <GraphTab run={run} data={data} />}
              {search.tab === "agent" && <AgentTab run={run} root={data.meta.root ?? data.meta.runKey} />}
              {search.tab === "ledger" && <LedgerTab run={run} />}
              {search.tab === "data" && (
                <>
                  <DataTab run={run} data={data} />
                  <Receipts run={run} />
                </>
              )}
              {search.tab === "logs" && <LogsTab run={run} />}
            </>
          );
        }}
      </Loaded>
    </Page>
  );
}

function Head({ data, generation }: { data: Instance; generation?: number }) {
  const may = useMay();
  const [zone] = useZone();
  const path = { workflowName: data.workflowName, instanceId: data.id };
  const runKey = data.meta.runKey;
  const why = useQuery({
    queryKey: ["run", runKey, "why"],
    queryFn: ({ signal }) =>
      ok(api.GET("/workflows/{workflowName}/instances/{instanceId}/why", { signal, params: { path } })),
  });
  const status = data.details.status;
  const ended = ["complete", "errored", "terminated"].includes(status);
  const reason = why.data?.reasons[0];
  return (
    <div className="run-head card">
      <p className="why">
        <Status status={data.details.cancelling ? "cancelling" : status} />{" "}
        {data.details.error ? (
          <span>
            {data.details.error.name}: {data.details.error.message}
          </span>
        ) : (
          <span>
            {reason ? withTimes(reason.text, zone) : ended ? "The run has ended." : <Progress why={why} />}
          </span>
        )}
        {reason?.until && (
          <span className="dim">
            {" "}
            · <Time at={reason.until} />
          </span>
        )}
      </p>
      {(why.data?.reasons.length ?? 0) > 1 && (
        <ul className="reasons">
          {why.data?.reasons.slice(1, 8).map((one) => (
            <li key={`${one.depth} ${one.code} ${one.step ?? ""} ${one.text}`}>
              {withTimes(one.text, zone)}
            </li>
          ))}
        </ul>
      )}
      <WaitsForPeople data={data} />
      {data.meta.blocked && (
        <p className="notice error">
          <strong>{data.meta.blocked.code}</strong> {data.meta.blocked.message}
        </p>
      )}
      <dl className="facts">
        <Fact name="Model">{data.meta.model}</Fact>
        <Fact name="Created">
          <ExactTime at={data.meta.createdAt} />
        </Fact>
        <Fact name={ended ? "Ended" : "Changed"}>
          <Time at={data.meta.completedAt ?? data.meta.updatedAt} />
        </Fact>
        {data.meta.nextTurnAt && (
          <Fact name="Next wake">
            <Time at={data.meta.nextTurnAt} />
          </Fact>
        )}
        {data.meta.priority !== 0 && <Fact name="Priority">{data.meta.priority}</Fact>}
        {Object.entries(data.meta.labels).length > 0 && (
          <Fact name="Labels">
            {Object.entries(data.meta.labels).map(([key, value]) => (
              <Link key={key} className="tag" to="/runs" search={{ label: `${key}:${value}` }}>
                {key}:{value}
              </Link>
            ))}
          </Fact>
        )}
        <Fact name="Generation">
          <Generations data={data} shown={generation} />
        </Fact>
      </dl>
      <Family data={data} />
      <div className="actions">
        {may("manage") && <Acts data={data} ended={ended} />}
        {may("send-event") && !ended && <SendEvent workflow={data.workflowName} id={data.id} />}
        <Copy
          label="Copy as CLI"
          text={`windlass runs get ${shellQuote(`${data.workflowName}/${data.id}`)}`}
        />
        <Copy
          label="Copy as curl"
          text={`curl -H "Authorization: Bearer $WINDLASS_KEY" ${shellQuote(
            `${apiBase}/workflows/${encodeURIComponent(data.workflowName)}/instances/${encodeURIComponent(data.id)}`,
          )}`}
        />
        <Copy label="Copy run key" text={runKey} />
        {may("manage") && (
          <a
            className="button"
            download
            href={`${apiBase}${at("workflows", data.workflowName, "instances", data.id, "export")}${
              generation === undefined ? "" : `?runNumber=${generation}`
            }`}
          >
            Export
          </a>
        )}
      </div>
    </div>
  );
}

/** A run without a reason to wait makes progress, if the server has said so. */
function Progress({ why }: { why: { data?: unknown; error: unknown; refetch: () => unknown } }) {
  if (why.data) return <>The run makes progress.</>;
  if (!why.error) return <span className="dim loading">Reading why…</span>;
  return (
    <span className="bad">
      Why it waits cannot be read: {why.error instanceof Error ? why.error.message : String(why.error)}{" "}
      <button type="button" onClick={() => why.refetch()}>
        Try again
      </button>
    </span>
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

function Acts({ data, ended }: { data: Instance; ended: boolean }) {
  const params = { path: { workflowName: data.workflowName, instanceId: data.id } };
  const status = data.details.status;
  const done = () => queries.invalidateQueries();
  const name = (
    <strong>
      {data.workflowName}/{data.id}
    </strong>
  );
  return (
    <>
      {["active", "waiting"].includes(status) && (
        <Act
          label="Pause"
          act={() => ok(api.POST("/workflows/{workflowName}/instances/{instanceId}/pause", { params }))}
          done={done}
        />
      )}
      {status === "paused" && (
        <Act
          label="Resume"
          act={() => ok(api.POST("/workflows/{workflowName}/instances/{instanceId}/resume", { params }))}
          done={done}
        />
      )}
      {status === "errored" && (
        <Act
          label="Retry"
          ask={<p>A new generation of {name} begins at the failed step and keeps the results before it.</p>}
          act={() => ok(api.POST("/workflows/{workflowName}/instances/{instanceId}/retry", { params }))}
          done={done}
        />
      )}
      {ended && (
        <Act
          label="Restart"
          danger
          ask={
            <p>
              A new generation of {name} begins with the same input:{" "}
              {compactJson(data.meta.params).slice(0, 200)}. All its steps run again.
            </p>
          }
          act={() => ok(api.POST("/workflows/{workflowName}/instances/{instanceId}/restart", { params }))}
          done={done}
        />
      )}
      {!ended && !data.details.cancelling && (
        <Act
          label="Cancel"
          danger
          ask={<p>{name} is asked to end. Its code can clean up, and its children and activities end too.</p>}
          act={() =>
            ok(
              api.POST("/durable/workflows/{runKey}/cancel", {
                params: { path: { runKey: data.meta.runKey } },
              }),
            )
          }
          done={done}
        />
      )}
      {!ended && (
        <Act
          label="Terminate"
          danger
          ask={<p>{name} ends at once, with its children and activities. Its code cannot clean up.</p>}
          act={() =>
            ok(api.POST("/workflows/{workflowName}/instances/{instanceId}/terminate", { params, body: null }))
          }
          done={done}
        />
      )}
    </>
  );
}

function Generations({ data, shown }: { data: Instance; shown?: number }) {
  const navigate = useNavigate();
  const { runNumber } = data.meta;
  if (runNumber === 0) return <>0</>;
  return (
    <select
      aria-label="Generation"
      value={shown ?? runNumber}
      onChange={(event) => {
        const number = Number(event.target.value);
        navigate({
          to: "/runs/$workflow/$id",
          params: { workflow: data.workflowName, id: data.id },
          search: (old) => ({ ...old, generation: number === runNumber ? undefined : number }),
        });
      }}
    >
      {Array.from({ length: Math.min(runNumber + 1, 200) }, (_, index) => runNumber - index).map((number) => (
        <option key={number} value={number}>
          {number === runNumber ? `${number} (newest)` : number}
        </option>
      ))}
    </select>
  );
}

// The way to the root, and the children.
function Family({ data }: { data: Instance }) {
  const path = { workflowName: data.workflowName, instanceId: data.id };
  const tree = useQuery({
    queryKey: ["run", data.meta.runKey, "tree"],
    queryFn: ({ signal }) =>
      ok(
        api.GET("/workflows/{workflowName}/instances/{instanceId}/tree", {
          signal,
          params: { path, query: { pageSize: 100 } },
        }),
      ),
  });
  const runs = tree.data?.runs ?? [];
  if (runs.length < 2) return null;
  const parents: typeof runs = [];
  for (let key = data.meta.parent; key; ) {
    const parent = runs.find((run) => run.runKey === key);
    if (!parent || parents.includes(parent)) break;
    parents.unshift(parent);
    key = parent.parent;
  }
  const children = runs.filter((run) => run.parent === data.meta.runKey);
  return (
    <div className="family">
      {parents.length > 0 && (
        <span>
          <span className="dim">Path </span>
          {parents.map((run) => (
            <span key={run.runKey}>
              <RunLink run={run} /> <span aria-hidden="true">›</span>{" "}
            </span>
          ))}
          this run
        </span>
      )}
      {children.length > 0 && (
        <details>
          <summary>
            {children.length}
            {tree.data?.hasNextPage ? "+" : ""} {children.length === 1 ? "child" : "children"}
          </summary>
          <ul>
            {children.map((run) => (
              <li key={run.runKey}>
                <Status status={run.status} /> <RunLink run={run} />
              </li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}

type RunLinkProps = { run: { workflowName: string; id: string }; search?: RunSearch };

export function RunLink({ run, search = {} }: RunLinkProps) {
  return (
    <Link to="/runs/$workflow/$id" params={{ workflow: run.workflowName, id: run.id }} search={search}>
      {run.workflowName}/{run.id}
    </Link>
  );
}
