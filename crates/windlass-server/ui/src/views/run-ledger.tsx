// The ledger of a run as a causal tree, with the verification of its chain.
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { api, ok, type Schemas } from "../api/client";
import { JsonView } from "../jsonview";
import { ExactTime, Failed, Loaded } from "../parts";
import { type ListHandle, VirtualList } from "../virtual";
import { RunLink, type RunRef } from "./run";
import { useRunSearch } from "./run-search";

type Event = Schemas["LedgerEvent"];

type CauseRef = { type: string; event_id?: string; run_id?: string } | null | undefined;

/** The event that caused an event. */
function causeOf(event: Event): string | undefined {
  return (event.cause as CauseRef)?.event_id;
}

/** The run that caused an event of another run. */
function causingRun(event: Event): string | undefined {
  const run = (event.cause as CauseRef)?.run_id;
  return run === event.runKey ? undefined : run;
}

export function LedgerTab({ run }: { run: RunRef }) {
  const path = { workflowName: run.workflowName, instanceId: run.instanceId };
  const [search, set] = useRunSearch();
  const filter = search.event ?? "";
  const scope = search.scope ?? "run";
  const list = useRef<ListHandle>(null);
  const ledger = useInfiniteQuery({
    queryKey: ["run", run.runKey, "ledger", run.generation, scope],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      ok(
        api.GET("/workflows/{workflowName}/instances/{instanceId}/ledger", {
          signal,
          params: { path, query: { runNumber: run.generation, pageSize: 100, cursor: pageParam, scope } },
        }),
      ),
    getNextPageParam: (page) => page.nextCursor ?? undefined,
  });
  const events = ledger.data?.pages.flatMap((page) => page.events) ?? [];
  // An event that follows its predecessor in the same run is not indented: only branches are.
  const depth = new Map<string, number>();
  let before: Event | undefined;
  for (const event of events) {
    const cause = causeOf(event);
    const causeDepth = cause === undefined ? 0 : (depth.get(cause) ?? 0);
    const isChain = before !== undefined && cause === before.eventId;
    depth.set(event.eventId, Math.min(isChain || cause === undefined ? causeDepth : causeDepth + 1, 8));
    before = event;
  }
  const shown = events.filter((event) => event.type.includes(filter.trim()));
  return (
    <>
      <div className="fields">
        <input
          aria-label="Filter by event type"
          placeholder="Event type contains"
          data-filter=""
          value={filter}
          onChange={(event) => set({ event: event.target.value || undefined })}
        />
        <select
          aria-label="Scope"
          value={scope}
          onChange={(event) => set({ scope: event.target.value === "root" ? "root" : undefined })}
        >
          <option value="run">this run</option>
          <option value="root">the whole tree of runs</option>
        </select>
        <Verify run={run} />
      </div>
      {ledger.error && events.length === 0 && <Failed error={ledger.error} retry={() => ledger.refetch()} />}
      {!ledger.isPending && shown.length === 0 && <p className="dim">No event matches.</p>}
      <VirtualList
        ref={list}
        items={shown}
        keyOf={(event) => event.eventId}
        height={33}
        label="Events"
        className="ledger"
        row={(event) => (
          <Line
            event={event}
            depth={depth.get(event.eventId) ?? 0}
            known={depth}
            run={run}
            show={(id) => list.current?.show(shown.findIndex((one) => one.eventId === id))}
          />
        )}
      />
      {ledger.hasNextPage && (
        <button type="button" disabled={ledger.isFetchingNextPage} onClick={() => ledger.fetchNextPage()}>
          Read more events
        </button>
      )}
    </>
  );
}

type LineProps = {
  event: Event;
  depth: number;
  known: Map<string, number>;
  run: RunRef;
  show: (event: string) => void;
};

function Line({ event, depth, known, run, show }: LineProps) {
  const [open, setOpen] = useState(false);
  const cause = causeOf(event);
  const from = causingRun(event);
  const isForeign = event.runKey !== run.runKey;
  return (
    <div className="event" style={{ paddingInlineStart: `${depth * 18}px` }}>
      <button type="button" className="j-toggle" aria-expanded={open} onClick={() => setOpen(!open)}>
        <span className="dim ordinal">{event.ordinal}</span>
        <span className="event-type">{event.type}</span>
        {isForeign && <span className="tag">{event.runKey.slice(0, 8)}</span>}
        <span className="dim small event-time">
          <ExactTime at={event.at} />
        </span>
      </button>
      {open && (
        <div className="event-detail">
          <JsonView label="Summary" value={event.summary} />
          <p className="dim small mono">hash {event.hash}</p>
          {from && (
            <p className="small">
              Cause: <CausingRun runKey={from} />
            </p>
          )}
          {cause && (
            <p className="small">
              Cause:{" "}
              {known.has(cause) ? (
                <button type="button" className="plain" onClick={() => show(cause)}>
                  event {cause.slice(0, 13)}
                </button>
              ) : (
                <Cause id={cause} />
              )}
            </p>
          )}
        </div>
      )}
    </div>
  );
}

function Cause({ id }: { id: string }) {
  const found = useQuery({
    queryKey: ["event", id],
    retry: false,
    queryFn: ({ signal }) => ok(api.GET("/events/{eventId}", { signal, params: { path: { eventId: id } } })),
  });
  if (found.data) {
    return (
      <>
        {found.data.event.type} of{" "}
        <RunLink run={found.data} search={{ tab: "ledger", generation: found.data.runNumber }} />
      </>
    );
  }
  return <span className="mono">{id}</span>;
}

function CausingRun({ runKey }: { runKey: string }) {
  const found = useQuery({
    queryKey: ["run-by-key", runKey],
    retry: false,
    queryFn: ({ signal }) => ok(api.GET("/runs/{runKey}", { signal, params: { path: { runKey } } })),
  });
  if (found.data) return <RunLink run={found.data} />;
  return <span className="mono">{runKey}</span>;
}

function Verify({ run }: { run: RunRef }) {
  const [asked, setAsked] = useState(false);
  const path = { workflowName: run.workflowName, instanceId: run.instanceId };
  const verified = useQuery({
    queryKey: ["verify", run.runKey, run.generation],
    enabled: asked,
    gcTime: 0,
    queryFn: ({ signal }) =>
      ok(
        api.GET("/workflows/{workflowName}/instances/{instanceId}/verify", {
          signal,
          params: { path, query: { runNumber: run.generation } },
        }),
      ),
  });
  return (
    <>
      <button type="button" onClick={() => (asked ? verified.refetch() : setAsked(true))}>
        Verify the chain
      </button>
      {asked && (
        <span role="status">
          <Loaded query={verified}>
            {(data) =>
              data.ok ? (
                <span className="good">
                  {String(data.events)} events match their hashes; head {data.head.slice(0, 12)}
                </span>
              ) : (
                <span className="bad">
                  {data.ordinal !== null && data.ordinal !== undefined && `Event ${data.ordinal}: `}
                  {data.problem}
                </span>
              )
            }
          </Loaded>
        </span>
      )}
    </>
  );
}
