import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { api, ok, type Schemas } from "../api/client";
import { useMay } from "../app";
import { Chart } from "../chart";
import { formatDuration } from "../format";
import { Card, Empty, Loaded, Page, Time } from "../parts";
import { StartSample } from "../start";

export type OverviewSearch = { workflow?: string; span?: "day" };
const HOUR = 60;
const DAY = 24 * 60;

export function Overview() {
  const search = useSearch({ from: "/" });
  const { workflow } = search;
  const minutes = search.span === "day" ? DAY : HOUR;
  const set = (change: OverviewSearch) =>
    navigate({ to: "/", search: { ...search, ...change }, replace: true });
  const navigate = useNavigate();
  const health = useQuery({
    queryKey: ["lists", "health"],
    queryFn: ({ signal }) => ok(api.GET("/durable/health", { signal })),
  });
  const attention = useQuery({
    queryKey: ["lists", "attention"],
    queryFn: ({ signal }) => ok(api.GET("/attention", { signal })),
  });
  const workflows = useQuery({
    queryKey: ["lists", "workflows"],
    queryFn: ({ signal }) => ok(api.GET("/workflows", { signal })),
  });
  const stats = useQuery({
    queryKey: ["lists", "stats"],
    queryFn: ({ signal }) => ok(api.GET("/durable/tasks/stats", { signal })),
  });
  const series = useQuery({
    queryKey: ["lists", "series", workflow, minutes],
    queryFn: ({ signal }) =>
      ok(api.GET("/stats/series", { signal, params: { query: { minutes, workflow } } })),
  });
  const span = search.span === "day" ? "last 24 hours" : "last 60 minutes";
  const isNew = workflows.data?.workflows.every((workflow) => Object.keys(workflow.counts).length === 0);
  return (
    <Page title="Overview">
      {isNew && <FirstRun names={(workflows.data?.workflows ?? []).map((workflow) => workflow.name)} />}
      <Loaded query={health}>
        {(data) => (
          <div className="figures">
            <Figure label="System" value={data.status} tone={data.status === "healthy" ? "good" : "bad"} />
            <Figure
              label="Running"
              value={data.running_workflows}
              hint={`${data.pending_workflows} not started`}
            />
            <Figure
              label="Workers"
              value={`${data.workers_accepting}/${data.total_workers}`}
              hint={`load ${Math.round(Number(data.load_percentage))} %`}
            />
            <Figure
              label="Tasks waiting"
              value={data.pending_tasks}
              hint={`${data.claimed_tasks} in progress`}
            />
            <Figure
              label="Oldest ready task"
              value={stats.data ? formatDuration(Number(stats.data.oldest_pending_task_age_ms)) : "–"}
            />
            <Figure label="Dead letters" value={data.dlq_size} tone={data.dlq_size > 0 ? "bad" : undefined} />
          </div>
        )}
      </Loaded>
      <Card title="Needs attention">
        <Loaded query={attention}>
          {(data) =>
            data.items.length === 0 ? (
              <p className="dim">Nothing. Failed runs of the last 24 hours would be here.</p>
            ) : (
              <ul className="attention">
                {data.items.map((item) => (
                  <Finding key={`${item.kind} ${item.workflowName ?? ""} ${item.key ?? ""}`} item={item} />
                ))}
              </ul>
            )
          }
        </Loaded>
      </Card>
      <div className="fields">
        <select
          aria-label="Charts of"
          value={workflow ?? ""}
          onChange={(event) => set({ workflow: event.target.value || undefined })}
        >
          <option value="">charts of all workflows</option>
          {[
            ...new Set([
              ...(workflows.data?.workflows ?? []).map((one) => one.name),
              ...(workflow ? [workflow] : []),
            ]),
          ].map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <select
          aria-label="Time of the charts"
          value={search.span ?? "hour"}
          onChange={(event) => set({ span: event.target.value === "day" ? "day" : undefined })}
        >
          <option value="hour">last 60 minutes</option>
          <option value="day">last 24 hours</option>
        </select>
      </div>
      {series.data?.counted === false && (
        <p className="notice">
          This process counts 40 workflows by name, and “{workflow}” is not among them. The charts of all
          workflows have its runs.
        </p>
      )}
      <div className="two">
        <Card title="Runs per minute">
          <Loaded query={series}>
            {(data) => (
              <Chart
                from={Date.parse(data.from) / 1000}
                label={`Runs that this process started, completed and failed in each minute of the ${span}`}
                lines={[
                  { label: "started", values: data.values.runsStarted, color: "--blue" },
                  { label: "completed", values: data.values.runsCompleted, color: "--green" },
                  { label: "failed", values: data.values.runsFailed, color: "--red" },
                ]}
              />
            )}
          </Loaded>
        </Card>
        <Card title={workflow ? "Steps per minute" : "Steps and tasks per minute"}>
          <Loaded query={series}>
            {(data) => (
              <Chart
                from={Date.parse(data.from) / 1000}
                label={`Steps and tasks that this process completed and failed in each minute of the ${span}`}
                lines={[
                  { label: "steps", values: data.values.stepsCompleted, color: "--blue" },
                  // Tasks are not counted by workflow.
                  ...(data.values.tasksCompleted
                    ? [{ label: "tasks", values: data.values.tasksCompleted, color: "--green" }]
                    : []),
                  {
                    label: "failed",
                    values: data.values.stepsFailed.map(
                      (n, index) => n + (data.values.tasksFailed?.[index] ?? 0),
                    ),
                    color: "--red",
                  },
                ]}
              />
            )}
          </Loaded>
        </Card>
      </div>
      <p className="dim small">
        Charts count what this process did since it started; other processes count their own.
      </p>
      <Card title="Workflows">
        <Loaded query={workflows}>
          {(data) =>
            data.workflows.length === 0 ? (
              <p className="dim">No worker serves a workflow, and there are no runs.</p>
            ) : (
              <Workflows rows={data.workflows} />
            )
          }
        </Loaded>
      </Card>
    </Page>
  );
}

const statuses = ["active", "waiting", "paused", "errored", "terminated", "complete"] as const;

function Workflows({ rows }: { rows: Schemas["Workflow"][] }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
    <section className="scroll" tabIndex={0} aria-label="Workflows">
      <table>
        <thead>
          <tr>
            <th>Workflow</th>
            <th>Served</th>
            {statuses.map((status) => (
              <th key={status} className="number">
                {status}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.name}>
              <td>
                <Link to="/runs" search={{ workflow: row.name }}>
                  {row.name}
                </Link>{" "}
                <span className="dim small">{row.model}</span>
              </td>
              <td>{row.served ? "yes" : <span className="bad">no</span>}</td>
              {statuses.map((status) => (
                <td key={status} className="number">
                  {row.counts[status] ? (
                    <Link to="/runs" search={{ workflow: row.name, status: [status] }}>
                      {String(row.counts[status])}
                    </Link>
                  ) : (
                    <span className="dim">0</span>
                  )}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Figure(props: { label: string; value: string | number; hint?: string; tone?: "good" | "bad" }) {
  return (
    <div className="figure">
      <span className="dim small">{props.label}</span>
      <strong className={props.tone}>{String(props.value)}</strong>
      <span className="dim small">{props.hint ?? "\u00a0"}</span>
    </div>
  );
}

function Finding({ item }: { item: Schemas["AttentionItem"] }) {
  const link = () => {
    switch (item.kind) {
      case "errored":
        return (
          <Link to="/runs" search={{ workflow: item.workflowName ?? undefined, status: ["errored"] }}>
            Show the runs
          </Link>
        );
      case "unserved":
      case "blocked":
      case "stuck":
        return (
          <Link
            to="/runs"
            search={{ workflow: item.workflowName ?? undefined, status: ["active", "waiting"] }}
          >
            Show the runs
          </Link>
        );
      case "deadLetters":
        return <Link to="/dead-letters">Show them</Link>;
      default:
        return <Link to="/workers">Workers and queues</Link>;
    }
  };
  return (
    <li className={item.severity}>
      <span>{item.text}</span>
      {item.since && (
        <span className="dim small">
          <Time at={item.since} />
        </span>
      )}
      {link()}
    </li>
  );
}

function FirstRun({ names }: { names: string[] }) {
  const may = useMay();
  if (names.length === 0) {
    return (
      <Empty title="No workflow yet">
        <p>
          Register one in your program with <code>engine.workflow("hello", …)</code> and start it on this
          store, or try the samples: <code>windlass dev</code>.
        </p>
      </Empty>
    );
  }
  const first = names.includes("hello") ? "hello" : names[0];
  return (
    <Empty title="No run yet">
      <p>
        This server knows {names.length === 1 ? "one workflow" : `${names.length} workflows`}. Start one and
        watch its steps.
      </p>
      {may("create") && <StartSample workflow={first} />}
    </Empty>
  );
}
