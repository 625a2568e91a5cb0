// The steps of a run as bars on one time axis: attempts, backoff, waits and children.
import { useInfiniteQuery, useQueries, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";
import { api, ok, type Schemas } from "../api/client";
import { useFollow, useNow } from "../app";
import { formatDuration } from "../format";
import { JsonView } from "../jsonview";
import { Empty, ExactTime, Failed, Loaded, Status } from "../parts";
import { type Scale, type Span, scaleOf } from "../scale";
import { RunLink, type RunRef } from "./run";
import { timelineFilters, useRunSearch } from "./run-search";

type Row = Schemas["TimelineRow"];
const ROW = 34;

function ms(at: string | null | undefined): number | undefined {
  return at ? Date.parse(at) : undefined;
}

function spansOf(row: Row, now: number): Span[] {
  const tries = row.tries
    .map((one) => ({ from: ms(one.beganAt) ?? ms(one.endedAt) ?? now, to: ms(one.endedAt) ?? now }))
    .filter((span) => Number.isFinite(span.from));
  const isWait = ["sleep", "event", "child"].includes(row.role);
  if (tries.length > 0) return tries;
  // Only the ends of a wait count as work: what lies between may be folded.
  const began = Date.parse(row.beganAt);
  const ended = ms(row.endedAt) ?? now;
  return isWait
    ? [
        { from: began, to: began },
        { from: ended, to: ended },
      ]
    : [{ from: began, to: ended }];
}

type At = { workflowName: string; id: string };
/** A row with its place: the steps of a child are below the step that waits for it. */
type Placed = { row: Row; depth: number; at: At; key: string };
/** The most levels of children that are shown in place. */
const DEPTH_MAX = 5;

/** The tree of runs says which step has started a child, also when the step keeps only its result. */
function withChildren(rows: Row[], parent: string, tree: Schemas["TreeRun"][]): Row[] {
  const byFork = new Map(tree.filter((one) => one.parent === parent).map((one) => [one.fork, one]));
  return rows.map((row) => {
    const child = row.role === "child" && !row.child ? byFork.get(row.stepKey) : undefined;
    return child ? { ...row, child } : row;
  });
}

const noRuns: Schemas["TreeRun"][] = [];
// A function that stays the same: its result is then the same until a timeline changes.
const rowsOf = (timelines: { data?: Schemas["Timeline"] }[]) => timelines.map((one) => one.data?.rows);

// The timelines of the children that are open. The result changes only with them.
function useChildren(open: Map<string, At>, tree: Schemas["TreeRun"][]) {
  const keys = [...open.keys()];
  useFollow(keys);
  const timelines = useQueries({
    combine: rowsOf,
    queries: keys.map((key) => {
      const at = open.get(key) as At;
      const path = { workflowName: at.workflowName, instanceId: at.id };
      return {
        queryKey: ["run", key, "child-timeline"],
        queryFn: ({ signal }) =>
          ok(
            api.GET("/workflows/{workflowName}/instances/{instanceId}/timeline", {
              signal,
              params: { path },
            }),
          ),
      };
    }),
  });
  return useMemo(() => {
    const rows = [...open.keys()].map((key, index) => withChildren(timelines[index] ?? [], key, tree));
    return new Map([...open.keys()].map((key, index) => [key, rows[index]]));
  }, [open, timelines, tree]);
}

function place(rows: Row[], at: At, children: Map<string, Row[]>, depth = 0): Placed[] {
  return rows.flatMap((row) => {
    const own = { row, depth, at, key: `${at.workflowName}/${at.id} ${row.stepKey}` };
    const below = row.child && depth < DEPTH_MAX ? children.get(row.child.runKey) : undefined;
    return below && row.child ? [own, ...place(below, row.child, children, depth + 1)] : [own];
  });
}

export function TimelineTab({ run, data }: { run: RunRef; data: Schemas["InstanceView"] }) {
  const path = { workflowName: run.workflowName, instanceId: run.instanceId };
  const [search, set] = useRunSearch();
  const filter = search.show ?? "all";
  const [opened, setOpened] = useState<Map<string, At>>(() => new Map());
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
  const family = tree.data?.runs ?? noRuns;
  const children = useChildren(opened, family);
  const toggle = (row: Row) => {
    if (!row.child) return;
    const next = new Map(opened);
    if (!next.delete(row.child.runKey)) next.set(row.child.runKey, row.child);
    setOpened(next);
  };
  const timeline = useInfiniteQuery({
    queryKey: ["run", run.runKey, "timeline", run.generation],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      ok(
        api.GET("/workflows/{workflowName}/instances/{instanceId}/timeline", {
          signal,
          params: { path, query: { runNumber: run.generation, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.nextCursor ?? undefined,
  });
  const ended = run.ended && run.generation === undefined;
  const rows = useMemo(() => {
    const all = timeline.data?.pages.flatMap((page) => page.rows) ?? [];
    // The tree is that of the newest generation.
    return run.generation === undefined ? withChildren(all, run.runKey, family) : all;
  }, [timeline.data, family, run.generation, run.runKey]);
  const open = rows.some((row) => !row.endedAt);
  const now = useNow(open && !ended);
  const chosen = useStep(rows, timeline, search.step);
  const scale = useMemo(() => {
    const from = Math.min(Date.parse(data.meta.createdAt), ...rows.map((row) => Date.parse(row.beganAt)));
    const ends = rows.map((row) => ms(row.endedAt) ?? now);
    const to = Math.max(now, ms(data.meta.completedAt) ?? 0, ...ends, from + 1);
    const start =
      run.generation === undefined ? from : Math.min(...rows.map((row) => Date.parse(row.beganAt)));
    return scaleOf(
      [...rows, ...[...children.values()].flat()].flatMap((row) => spansOf(row, now)),
      start,
      to,
    );
  }, [rows, children, now, data, run.generation]);
  const slowest = useMemo(() => {
    const took = rows.map((row) => (ms(row.endedAt) ?? now) - Date.parse(row.beganAt)).sort((a, b) => b - a);
    return took[Math.min(9, took.length - 1)] ?? 0;
  }, [rows, now]);
  const shown = rows.filter((row) => {
    if (filter === "failed") return row.error !== undefined && row.error !== null;
    if (filter === "waiting") return !row.endedAt;
    if (filter === "slow") return (ms(row.endedAt) ?? now) - Date.parse(row.beganAt) >= slowest;
    return true;
  });
  if (timeline.error && rows.length === 0)
    return <Failed error={timeline.error} retry={() => timeline.refetch()} />;
  if (timeline.isPending) return <p className="dim loading">Reading…</p>;
  if (rows.length === 0) {
    return (
      <Empty title="No step yet">
        <p>A step appears here when something about it was recorded. The ledger shows every event.</p>
      </Empty>
    );
  }
  return (
    <>
      <div className="chips">
        {timelineFilters.map((word) => (
          <button
            key={word}
            type="button"
            className="chip"
            aria-pressed={filter === word}
            onClick={() => set({ show: word === "all" ? undefined : word })}
          >
            {word}
          </button>
        ))}
        <span className="dim small">
          {shown.length} of {rows.length}
          {timeline.hasNextPage && "+"} steps
          {timeline.data?.pages.some((page) => page.triesCut) && " · some attempts are not shown"}
        </span>
        {timeline.hasNextPage && (
          <button
            type="button"
            disabled={timeline.isFetchingNextPage}
            onClick={() => timeline.fetchNextPage()}
          >
            Read more steps
          </button>
        )}
      </div>
      {chosen === "absent" && <p className="notice">The run has no step {search.step}.</p>}
      {chosen === "sought" && <p className="dim loading">Looking for the step {search.step}…</p>}
      <Bars
        rows={place(shown, { workflowName: run.workflowName, id: run.instanceId }, children)}
        scale={scale}
        now={now}
        run={run}
        opened={opened}
        toggle={toggle}
        chosen={typeof chosen === "object" ? chosen : undefined}
      />
    </>
  );
}

type Pages = { hasNextPage: boolean; isFetching: boolean; isError: boolean; fetchNextPage: () => unknown };

/** The step of the address. Pages are read until it is found. */
function useStep(rows: Row[], pages: Pages, key: string | undefined): Row | "sought" | "absent" | undefined {
  const found = key === undefined ? undefined : rows.find((row) => row.stepKey === key);
  const isSought = key !== undefined && !found && rows.length > 0 && pages.hasNextPage && !pages.isError;
  const { isFetching, fetchNextPage } = pages;
  useEffect(() => {
    if (isSought && !isFetching) fetchNextPage();
  }, [isSought, isFetching, fetchNextPage]);
  if (key === undefined || found) return found;
  return isSought ? "sought" : "absent";
}

type BarsProps = {
  rows: Placed[];
  scale: Scale;
  now: number;
  run: RunRef;
  opened: Map<string, At>;
  toggle: (row: Row) => void;
  /** The step of the address, also if the filter hides its row. */
  chosen?: Row;
};

function Bars({ rows, scale, now, run, opened, toggle, chosen }: BarsProps) {
  const scroll = useRef<HTMLDivElement>(null);
  const search = useSearch({ from: "/runs/$workflow/$id" });
  const navigate = useNavigate();
  const list = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => ROW,
    overscan: 10,
  });
  // A step that the page was opened with is scrolled to; one that is clicked is visible.
  const [first] = useState(search.step);
  const firstAt = rows.findIndex(({ row, depth }) => depth === 0 && row.stepKey === first);
  useEffect(() => {
    if (firstAt > 0) list.scrollToIndex(firstAt, { align: "center" });
  }, [firstAt, list]);
  const open = (row: Row | undefined) =>
    navigate({
      to: "/runs/$workflow/$id",
      params: { workflow: run.workflowName, id: run.instanceId },
      search: (old) => ({ ...old, step: row?.stepKey }),
      replace: true,
    });
  // A step of a child opens in the view of the child.
  const openChild = (placed: Placed) =>
    navigate({
      to: "/runs/$workflow/$id",
      params: { workflow: placed.at.workflowName, id: placed.at.id },
      search: { step: placed.row.stepKey },
    });
  return (
    <div className={chosen ? "timeline with-step" : "timeline"}>
      <div className="card bars">
        <div className="axis" aria-hidden="true">
          <span>0</span>
          {scale.folds.map((fold) => (
            <span key={fold.from} className="fold" style={{ left: `${20 + fold.at * 80}%` }}>
              ⋯ {formatDuration(fold.to - fold.from)}
            </span>
          ))}
          <span className="axis-end">{formatDuration(scale.to - scale.from)}</span>
        </div>
        <div className="bars-scroll" ref={scroll}>
          <div style={{ height: list.getTotalSize(), position: "relative" }}>
            {list.getVirtualItems().map((item) => {
              const placed = rows[item.index];
              const { row, depth } = placed;
              const isChosen = depth === 0 && row.stepKey === search.step;
              const isOpen = row.child ? opened.has(row.child.runKey) : false;
              return (
                <div
                  key={placed.key}
                  className="bar-line"
                  style={{ transform: `translateY(${item.start}px)` }}
                >
                  <button
                    type="button"
                    className="bar-row"
                    aria-expanded={isChosen}
                    onClick={() => (depth > 0 ? openChild(placed) : open(isChosen ? undefined : row))}
                  >
                    <span
                      className="bar-name"
                      title={row.stepKey}
                      style={{ paddingInlineStart: depth * 14 + (row.child ? 20 : 0) }}
                    >
                      <span className={`dot s-${row.state}`} aria-hidden="true" />
                      <span className="clip">{row.name}</span>
                      {row.role !== "work" && <span className="dim small"> {row.kind}</span>}
                    </span>
                    <Track row={row} scale={scale} now={now} />
                    <span className="visually-hidden">{row.state}</span>
                  </button>
                  {row.child && depth < DEPTH_MAX && (
                    <button
                      type="button"
                      className="bar-child"
                      aria-expanded={isOpen}
                      aria-label={`Steps of the child ${row.child.id}`}
                      style={{ left: 12 + depth * 14 }}
                      onClick={() => toggle(row)}
                    >
                      <span aria-hidden="true">{isOpen ? "▾" : "▸"}</span>
                    </button>
                  )}
                </div>
              );
            })}
          </div>
        </div>
      </div>
      {chosen && <StepPanel key={chosen.stepKey} row={chosen} run={run} close={() => open(undefined)} />}
    </div>
  );
}

function Track({ row, scale, now }: { row: Row; scale: Scale; now: number }) {
  const place = (from: number, to: number) => {
    const left = scale.x(from) * 100;
    return { left: `${left}%`, width: `${Math.max(scale.x(to) * 100 - left, 0)}%` };
  };
  const began = Date.parse(row.beganAt);
  const ended = ms(row.endedAt) ?? Math.max(now, began);
  const label = formatDuration(ended - began);
  // Beside the bar if there is room, else within it.
  const [from, to] = [scale.x(began), scale.x(ended)];
  const labelAt =
    to < 0.78
      ? { left: `${to * 100}%` }
      : from > 0.3
        ? { right: `${100 - from * 100}%` }
        : { left: `${from * 100}%` };
  return (
    <span className="track">
      {scale.folds.map((fold) => (
        <span key={fold.from} className="track-fold" style={place(fold.from, fold.to)} />
      ))}
      <span
        className={`bar b-${row.role} ${row.endedAt ? "" : "open"}`}
        style={place(began, ended)}
        title={`${row.name}: ${label}`}
      />
      {row.tries.map((one) => {
        const end = ms(one.endedAt) ?? ended;
        return (
          <span
            key={one.attempt}
            className={one.error ? "bar try failed" : "bar try"}
            style={place(ms(one.beganAt) ?? end, end)}
            title={`attempt ${one.attempt}${one.error ? `: ${one.error}` : ""}`}
          />
        );
      })}
      <span className="bar-label" style={labelAt}>
        {row.endedAt ? label : row.waitEventType ? `waits for ${row.waitEventType}` : label}
        {row.attempts > 1 && ` · ${row.attempts} attempts`}
      </span>
    </span>
  );
}

function StepPanel({ row, run, close }: { row: Row; run: RunRef; close: () => void }) {
  const ref = useRef<HTMLElement>(null);
  useEffect(() => ref.current?.focus({ preventScroll: true }), []);
  const step = useQuery({
    queryKey: ["run", run.runKey, "step", run.generation, row.stepKey, row.state, row.attempts],
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
  });
  return (
    <section className="card step" ref={ref} tabIndex={-1} aria-label={`Step ${row.name}`}>
      <div className="card-head">
        <h2 className="clip">{row.name}</h2>
        <Status status={row.state} />
        <button type="button" className="plain" onClick={close} aria-label="Close the step">
          ✕
        </button>
      </div>
      {row.child && (
        <p>
          Child run <RunLink run={row.child} />
        </p>
      )}
      {row.tries.length > 0 && (
        <ol className="tries">
          {row.tries.map((one) => (
            <li key={one.attempt} className={one.error ? "bad" : ""}>
              <ExactTime at={one.beganAt} />{" "}
              {one.beganAt &&
                one.endedAt &&
                formatDuration(Date.parse(one.endedAt) - Date.parse(one.beganAt))}{" "}
              {one.error ?? ""}
              {one.worker && <span className="dim small"> worker {one.worker.slice(0, 13)}</span>}
            </li>
          ))}
        </ol>
      )}
      <Loaded query={step}>
        {(data) => (
          <>
            {data.error && (
              <p className="notice error">
                <strong>{data.error.name}</strong> {data.error.message}
              </p>
            )}
            {data.input !== null && data.input !== undefined && <JsonView label="Input" value={data.input} />}
            {data.result !== null && data.result !== undefined && (
              <JsonView label="Result" value={data.result} />
            )}
          </>
        )}
      </Loaded>
      <p className="small">
        <Link
          to="/runs/$workflow/$id"
          params={{ workflow: run.workflowName, id: run.instanceId }}
          search={{ tab: "logs", step: row.stepKey, generation: run.generation }}
        >
          Logs of this step
        </Link>
      </p>
    </section>
  );
}
