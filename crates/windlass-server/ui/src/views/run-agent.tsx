// An agent: its conversation, its calls of models and tools, and their tokens, from the steps of the run.
import { useInfiniteQuery, useQueries, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { type Message, messagesOf, type Part, sumOf, type Usage, usageOf } from "../agent";
import { api, ok, type Schemas } from "../api/client";
import { at, call, useRoute } from "../api/raw";
import { formatDuration } from "../format";
import { JsonView } from "../jsonview";
import { Card, Empty, Failed, Loaded, Status } from "../parts";
import { type Budget, BudgetTable, RootCost, useHasLlm } from "./batches";
import type { RunRef } from "./run";

type Row = Schemas["TimelineRow"];
const kinds = ["items", "response", "llm", "tool", "fork", "request"];
/** How many steps are read with their bodies at once. */
const PAGE = 40;

export function AgentTab({ run, root }: { run: RunRef; root: string }) {
  const hasLlm = useHasLlm();
  const path = { workflowName: run.workflowName, instanceId: run.instanceId };
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
  return (
    <Loaded query={timeline}>
      {(data) => {
        const rows = data.rows.filter((row) => kinds.includes(row.kind));
        if (rows.length === 0) {
          return (
            <Empty title="No call yet">
              <p>The conversation, tools and tokens appear when the agent has called a model.</p>
            </Empty>
          );
        }
        return (
          <>
            {hasLlm && <Money run={run} root={root} />}
            <Steps run={run} rows={rows} more={data.hasNextPage} />
          </>
        );
      }}
    </Loaded>
  );
}

// The cost of the run with all its branches, its budget, and the batches of its calls.
function Money({ run, root }: { run: RunRef; root: string }) {
  const budgets = useQuery({
    queryKey: ["run", run.runKey, "budgets"],
    retry: false,
    queryFn: ({ signal }) =>
      call<{ budgets: Budget[] }>(`/budgets?run=${encodeURIComponent(run.instanceId)}`, { signal }),
    // Other workflows can have a run with the same id.
    select: (found) => found.budgets.filter((one) => one.workflow === run.workflowName),
  });
  return (
    <Card
      title="Cost and budget"
      aside={
        <Link to="/batches" search={{ root }}>
          Batches & spend
        </Link>
      }
    >
      <RootCost runKey={root} />
      <Loaded query={budgets}>
        {(found) =>
          found.length === 0 ? <p className="dim small">No budget.</p> : <BudgetTable budgets={found} />
        }
      </Loaded>
    </Card>
  );
}

const TRANSCRIPT = "/workflows/{workflowName}/instances/{instanceId}/transcript";

type TranscriptPage = {
  transcripts: { name: string; format?: string | null; items: number }[];
  name?: string | null;
  items: unknown[];
  nextCursor?: string;
};

// The conversation as the next request sends it, with what a fork took over from its parent.
function Transcript({ run }: { run: RunRef }) {
  const [name, setName] = useState<string | undefined>(undefined);
  const pages = useInfiniteQuery({
    queryKey: ["run", run.runKey, "transcript", run.generation, name],
    retry: false,
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) => {
      const query = new URLSearchParams({ pageSize: "100" });
      if (name !== undefined) query.set("name", name);
      if (run.generation !== undefined) query.set("runNumber", String(run.generation));
      if (pageParam) query.set("cursor", pageParam);
      const path = at("workflows", run.workflowName, "instances", run.instanceId, "transcript");
      return call<TranscriptPage>(`${path}?${query}`, { signal });
    },
    getNextPageParam: (page) => page.nextCursor,
  });
  const first = pages.data?.pages[0];
  const items = pages.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <Card
      title="Conversation"
      aside={
        first &&
        first.transcripts.length > 1 && (
          <select
            aria-label="Conversation"
            value={name ?? first.name ?? ""}
            onChange={(event) => setName(event.target.value)}
          >
            {first.transcripts.map((one) => (
              <option key={one.name} value={one.name}>
                {one.name} ({one.items})
              </option>
            ))}
          </select>
        )
      }
    >
      {pages.error && items.length === 0 && <Failed error={pages.error} retry={() => pages.refetch()} />}
      {first && items.length === 0 && <p className="dim">Nothing was said yet.</p>}
      <ol className="talk">
        {items.flatMap(messagesOf).map((message, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: a conversation only grows.
          <MessageView key={index} message={message} />
        ))}
      </ol>
      {pages.hasNextPage && (
        <button type="button" disabled={pages.isFetchingNextPage} onClick={() => pages.fetchNextPage()}>
          Read more
        </button>
      )}
    </Card>
  );
}

function Steps({ run, rows, more }: { run: RunRef; rows: Row[]; more: boolean }) {
  const [count, setCount] = useState(PAGE);
  // The newest steps: a conversation is read from its end.
  const shown = rows.slice(Math.max(0, rows.length - count));
  const steps = useQueries({
    queries: shown.map((row) => ({
      queryKey: ["run", run.runKey, "step", row.stepKey, run.generation, row.state],
      // A completed step does not change.
      staleTime: row.endedAt ? Number.POSITIVE_INFINITY : 1000,
      queryFn: ({ signal }) =>
        ok(
          api.GET("/workflows/{workflowName}/instances/{instanceId}/steps/{stepKey}", {
            signal,
            params: {
              path: { workflowName: run.workflowName, instanceId: run.instanceId, stepKey: row.stepKey },
              query: { runNumber: run.generation, position: row.position },
            },
          }),
        ),
    })),
  });
  const read = shown.map((row, index) => ({ row, step: steps[index].data }));
  const calls = read.filter(({ row }) => row.kind === "llm");
  const usages = calls.flatMap(({ step }) => usageOf(step?.result) ?? []);
  const earlier = rows.length - shown.length;
  const hasTranscript = useRoute(TRANSCRIPT);
  return (
    <div className="two">
      {hasTranscript.data && <Transcript run={run} />}
      <Card title={hasTranscript.data ? "Recorded steps" : "Conversation"}>
        {earlier > 0 && (
          <button type="button" onClick={() => setCount(count + PAGE)}>
            {earlier} earlier {earlier === 1 ? "step" : "steps"}
          </button>
        )}
        <ol className="talk">
          {read.map(({ row, step }) => (
            <Line key={row.stepKey} row={row} step={step} run={run} />
          ))}
        </ol>
        {more && <p className="dim small">The run has more steps; the timeline has all.</p>}
      </Card>
      <Card title="Calls and tokens">
        <Tokens usages={usages} calls={calls.length} partly={earlier > 0} />
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard. */}
        <section className="scroll" tabIndex={0} aria-label="Calls">
          <table>
            <thead>
              <tr>
                <th>Call</th>
                <th>State</th>
                <th className="number">In</th>
                <th className="number">Out</th>
                <th className="number">Took</th>
              </tr>
            </thead>
            <tbody>
              {read
                .filter(({ row }) => row.kind === "llm" || row.kind === "tool")
                .map(({ row, step }) => (
                  <CallRow key={row.stepKey} row={row} step={step} run={run} />
                ))}
            </tbody>
          </table>
        </section>
      </Card>
    </div>
  );
}

function Tokens({ usages, calls, partly }: { usages: Usage[]; calls: number; partly: boolean }) {
  const sum = sumOf(usages);
  const number = (value: number) => value.toLocaleString("en");
  return (
    <dl className="facts">
      <div>
        <dt>{partly ? "Calls that are shown" : "Calls of models"}</dt>
        <dd>{calls}</dd>
      </div>
      <div>
        <dt>Input tokens</dt>
        <dd>{number(sum.input)}</dd>
      </div>
      <div>
        <dt>Output tokens</dt>
        <dd>{number(sum.output)}</dd>
      </div>
      <div>
        <dt>Read from a cache</dt>
        <dd>{number(sum.cached)}</dd>
      </div>
    </dl>
  );
}

type Step = Schemas["StepDetail"];

function CallRow({ row, step, run }: { row: Row; step?: Step; run: RunRef }) {
  const usage = usageOf(step?.result);
  const input = step?.input as { model?: string; name?: string; tool?: string } | null | undefined;
  const took = row.endedAt ? Date.parse(row.endedAt) - Date.parse(row.beganAt) : undefined;
  return (
    <tr>
      <td>
        <Link
          to="/runs/$workflow/$id"
          params={{ workflow: run.workflowName, id: run.instanceId }}
          search={{ step: row.stepKey, generation: run.generation }}
        >
          {input?.model ?? input?.tool ?? input?.name ?? row.name}
        </Link>{" "}
        <span className="dim small">
          {row.kind}
          {row.attempts > 1 && `, ${row.attempts} attempts`}
        </span>
      </td>
      <td>
        <Status status={row.state} />
      </td>
      <td className="number">{usage?.input ?? "–"}</td>
      <td className="number">{usage?.output ?? "–"}</td>
      <td className="number">{took === undefined ? "–" : formatDuration(took)}</td>
    </tr>
  );
}

function Line({ row, step, run }: { row: Row; step?: Step; run: RunRef }) {
  if (row.kind === "llm") return null;
  if (row.kind === "items" || row.kind === "response") {
    if (!step) return <li className="dim">Reading…</li>;
    return (
      <>
        {messagesOf(step.result).map((message, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the messages of a step never change.
          <MessageView key={index} message={message} />
        ))}
      </>
    );
  }
  return (
    <li className="talk-tool">
      <span className="dim small">{row.kind}</span>{" "}
      <Link
        to="/runs/$workflow/$id"
        params={{ workflow: run.workflowName, id: run.instanceId }}
        search={{ step: row.stepKey, generation: run.generation }}
      >
        {row.name}
      </Link>{" "}
      <Status status={row.state} />
      {step?.error && <p className="bad">{step.error.message}</p>}
    </li>
  );
}

function MessageView({ message }: { message: Message }) {
  return (
    <li className={`talk-${message.role === "user" ? "user" : "agent"}`}>
      <span className="dim small">{message.role}</span>
      {message.parts.map((part, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the parts of a message never change.
        <PartView key={index} part={part} />
      ))}
    </li>
  );
}

function PartView({ part }: { part: Part }) {
  switch (part.kind) {
    case "text":
      return <p className="text">{part.text}</p>;
    case "thinking":
      return (
        <details>
          <summary>Thinking</summary>
          <p className="text dim">{part.text}</p>
        </details>
      );
    case "call":
      return <JsonView label={`Calls ${part.name}`} value={part.input} />;
    case "result":
      return <JsonView label={part.failed ? "The tool failed" : "The tool answers"} value={part.value} />;
    default:
      return <JsonView label="Content" value={part.value} />;
  }
}
