import { type InfiniteData, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";
import { api, ok, type Schemas } from "../api/client";
import { queries, useMay, useSetting } from "../app";
import { bulkFilter } from "../bulk";
import { Act, Dialog, Empty, Failed, Loaded, Page, Status, Time } from "../parts";
import { NewRun } from "../start";
import { FIRST, PageIndex, wanted } from "../window";

export const statuses = ["active", "waiting", "paused", "errored", "terminated", "complete"] as const;
export type RunsSearch = {
  workflow?: string;
  status?: string[];
  id?: string;
  label?: string;
  model?: string;
  error?: string;
  from?: string;
  roots?: boolean;
  order?: "asc";
};

export function readSearch(search: Record<string, unknown>): RunsSearch {
  const text = (value: unknown) => (value === undefined || value === "" ? undefined : String(value));
  const listed = Array.isArray(search.status) ? search.status : [search.status];
  const chosen = statuses.filter((status) => listed.includes(status));
  return {
    workflow: text(search.workflow),
    status: chosen.length > 0 ? [...chosen] : undefined,
    id: text(search.id),
    label: text(search.label),
    model: text(search.model),
    error: text(search.error),
    from: text(search.from),
    roots: search.roots === true ? true : undefined,
    order: search.order === "asc" ? "asc" : undefined,
  };
}

function queryOf(search: RunsSearch) {
  return {
    workflow: search.workflow,
    status: search.status,
    idPrefix: search.id,
    label: search.label ? [search.label] : undefined,
    model: search.model,
    errorCode: search.error,
    createdFrom: search.from,
    rootsOnly: search.roots,
    order: search.order,
  };
}

export function Runs() {
  const search = useSearch({ from: "/runs" });
  const may = useMay();
  const [creating, setCreating] = useState(false);
  const workflows = useQuery({
    queryKey: ["lists", "workflows"],
    queryFn: ({ signal }) => ok(api.GET("/workflows", { signal })),
  });
  const list = useRunPages(search);
  const { runs, rows, start } = list;
  const names = (workflows.data?.workflows ?? []).map((workflow) => workflow.name);
  const actions = may("create") && names.length > 0 && (
    <button type="button" className="primary" onClick={() => setCreating(true)}>
      New run
    </button>
  );
  return (
    <Page title="Runs" actions={actions}>
      <Filters search={search} names={names} />
      {may("manage") && <Bulk search={search} failed={runs.error !== null} />}
      {runs.error && rows.length === 0 ? (
        <Failed error={runs.error} retry={() => runs.refetch()} />
      ) : runs.isPending ? (
        <p className="dim loading">Reading…</p>
      ) : rows.length === 0 && !runs.hasNextPage ? (
        <NoRuns filtered={Object.values(search).some((value) => value !== undefined)} />
      ) : (
        <Rows
          rows={rows}
          start={start}
          more={runs.hasNextPage}
          loading={runs.isFetchingNextPage || runs.isFetchingPreviousPage}
          read={list.read}
        />
      )}
      {creating && <NewRun workflows={names} close={() => setCreating(false)} />}
    </Page>
  );
}

type RunPages = InfiniteData<Schemas["RunsPage"], string>;

const PAGE = 100;
/** The pages that are kept and read again at a hint; a page far away is read when somebody scrolls there. */
const PAGES = 8;

function useRunPages(search: RunsSearch) {
  const name = JSON.stringify(search);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the places of the pages belong to one filter.
  const index = useMemo(() => new PageIndex(), [name]);
  const queryKey = ["lists", "runs", search];
  const page = async (cursor: string, signal?: AbortSignal) => {
    const query = { ...queryOf(search), pageSize: PAGE, cursor: cursor === FIRST ? undefined : cursor };
    const read = await ok(api.GET("/runs", { signal, params: { query } }));
    index.note(cursor, read.runs.length, read.nextCursor ?? undefined);
    return read;
  };
  const runs = useInfiniteQuery({
    queryKey,
    initialPageParam: FIRST,
    queryFn: ({ pageParam, signal }) => page(pageParam, signal),
    getNextPageParam: (last) => last.nextCursor ?? undefined,
    getPreviousPageParam: (_page, _pages, first) => index.previous(first),
    maxPages: PAGES,
  });
  // The view opens at the first row, so a window far down is of no use later.
  useEffect(
    () => () => {
      const first = queries.getQueryData<RunPages>(["lists", "runs", JSON.parse(name)])?.pageParams[0];
      if (first !== undefined && first !== FIRST)
        queries.removeQueries({ queryKey: ["lists", "runs", JSON.parse(name)] });
    },
    [name],
  );
  const jumping = useRef(false);
  const jump = async (row: number) => {
    if (jumping.current) return;
    jumping.current = true;
    try {
      const cursor = index.pageOf(row);
      const read = await page(cursor);
      await queries.cancelQueries({ queryKey });
      queries.setQueryData<RunPages>(queryKey, { pages: [read], pageParams: [cursor] });
    } catch {
      // The rows stay empty; the next scroll tries again.
    } finally {
      jumping.current = false;
    }
  };
  const read = (what: "previous" | "next" | "jump", row: number) => {
    if (what === "jump") void jump(row);
    // After an error, the next hint reads what is shown again, and then this goes on.
    else if (runs.isFetching || runs.isError) return;
    else if (what === "next") void runs.fetchNextPage();
    else void runs.fetchPreviousPage();
  };
  const rows = runs.data?.pages.flatMap((one) => one.runs) ?? [];
  const start = index.start(String(runs.data?.pageParams[0] ?? FIRST));
  return { runs, rows, start, read };
}

function NoRuns({ filtered }: { filtered: boolean }) {
  if (filtered) {
    return (
      <Empty title="No run matches">
        <p>
          Remove a filter, or <Link to="/runs">show all runs</Link>.
        </p>
      </Empty>
    );
  }
  return (
    <Empty title="No run yet">
      <p>
        Start one with <code>windlass runs create &lt;workflow&gt;</code>, over HTTP, or with the button
        above.
      </p>
    </Empty>
  );
}

function Filters({ search, names }: { search: RunsSearch; names: string[] }) {
  const navigate = useNavigate();
  const set = (change: RunsSearch) =>
    navigate({ to: "/runs", search: { ...search, ...change }, replace: true });
  const toggle = (status: string) => {
    const now = search.status ?? [];
    const next = now.includes(status) ? now.filter((one) => one !== status) : [...now, status];
    set({ status: next.length > 0 ? next : undefined });
  };
  return (
    <div className="filters">
      <div className="chips">
        {statuses.map((status) => (
          <button
            key={status}
            type="button"
            className="chip"
            aria-pressed={search.status?.includes(status) ?? false}
            onClick={() => toggle(status)}
          >
            {status}
          </button>
        ))}
        <button
          type="button"
          className="chip"
          aria-pressed={search.roots ?? false}
          onClick={() => set({ roots: search.roots ? undefined : true })}
        >
          without children
        </button>
        <button
          type="button"
          className="chip"
          aria-pressed={search.order === "asc"}
          onClick={() => set({ order: search.order ? undefined : "asc" })}
        >
          oldest first
        </button>
        {search.model && (
          <button
            type="button"
            className="chip"
            aria-pressed="true"
            onClick={() => set({ model: undefined })}
          >
            model {search.model} ✕
          </button>
        )}
        {search.from && (
          <button type="button" className="chip" aria-pressed="true" onClick={() => set({ from: undefined })}>
            created since {search.from.slice(0, 16)} ✕
          </button>
        )}
      </div>
      <div className="fields">
        <select
          aria-label="Workflow"
          value={search.workflow ?? ""}
          onChange={(event) => set({ workflow: event.target.value || undefined })}
        >
          <option value="">all workflows</option>
          {[...new Set([...names, ...(search.workflow ? [search.workflow] : [])])].map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <Field label="Id begins with" value={search.id} set={(id) => set({ id })} focus />
        <Field label="Label key:value" value={search.label} set={(label) => set({ label })} />
        <Field label="Error name" value={search.error} set={(error) => set({ error })} />
        <Views search={search} />
      </div>
    </div>
  );
}

function Field(props: {
  label: string;
  value?: string;
  set: (value: string | undefined) => void;
  focus?: boolean;
}) {
  const [text, setText] = useState(props.value ?? "");
  useEffect(() => setText(props.value ?? ""), [props.value]);
  return (
    <input
      aria-label={props.label}
      placeholder={props.label}
      data-filter={props.focus ? "" : undefined}
      value={text}
      onChange={(event) => setText(event.target.value)}
      onBlur={() => text !== (props.value ?? "") && props.set(text.trim() || undefined)}
      onKeyDown={(event) => event.key === "Enter" && props.set(text.trim() || undefined)}
    />
  );
}

type SavedView = { name: string; search: RunsSearch };

function Views({ search }: { search: RunsSearch }) {
  const navigate = useNavigate();
  const [stored, store] = useSetting("views", "[]");
  const [naming, setNaming] = useState(false);
  let views: SavedView[] = [];
  try {
    views = JSON.parse(stored) as SavedView[];
  } catch {
    // A broken list is replaced by the next view that is saved.
  }
  return (
    <>
      <select
        aria-label="Saved views"
        value=""
        onChange={(event) => {
          const view = views[Number(event.target.value)];
          if (event.target.value === "save") setNaming(true);
          else if (event.target.value === "clear") store("[]");
          else if (view) navigate({ to: "/runs", search: readSearch(view.search) });
        }}
      >
        <option value="">saved views</option>
        {views.map((view, index) => (
          <option key={view.name} value={index}>
            {view.name}
          </option>
        ))}
        <option value="save">save this view…</option>
        {views.length > 0 && <option value="clear">forget all views</option>}
      </select>
      {naming && (
        <Dialog title="Save this view" close={() => setNaming(false)}>
          <form
            className="dialog-body form"
            onSubmit={(event) => {
              event.preventDefault();
              const name = String(new FormData(event.currentTarget).get("name"));
              store(JSON.stringify([...views.filter((view) => view.name !== name), { name, search }]));
              setNaming(false);
            }}
          >
            <label>
              Name
              <input name="name" required maxLength={60} />
            </label>
            <div className="dialog-foot">
              <button type="submit" className="primary">
                Save in this browser
              </button>
            </div>
          </form>
        </Dialog>
      )}
    </>
  );
}

const ROW = 46;

type RowsProps = {
  rows: Schemas["RunSummary"][];
  /** The number of rows before them that are not kept. */
  start: number;
  more: boolean;
  loading: boolean;
  read: (what: "previous" | "next" | "jump", row: number) => void;
};

function Rows({ rows, start, more, loading, read }: RowsProps) {
  const scroll = useRef<HTMLElement>(null);
  const list = useVirtualizer({
    count: start + rows.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => ROW,
    overscan: 12,
  });
  const items = list.getVirtualItems();
  const first = items.at(0)?.index ?? 0;
  const last = items.at(-1)?.index ?? 0;
  const what = wanted({ start, rows: rows.length, more }, { first, last }, 10);
  useEffect(() => {
    if (what && !loading) read(what, first);
  });
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
    <section className="runs card" ref={scroll} tabIndex={0} aria-label="Runs">
      <div style={{ height: list.getTotalSize(), position: "relative" }}>
        {items.map((item) => {
          const run = rows[item.index - start];
          const style = { transform: `translateY(${item.start}px)` };
          if (!run)
            return (
              <span key={item.index} className="run-row dim" style={style}>
                Reading…
              </span>
            );
          return (
            <Link
              key={run.runKey}
              className="run-row"
              style={style}
              to="/runs/$workflow/$id"
              params={{ workflow: run.workflowName, id: run.id }}
              search={{}}
            >
              <Status status={run.details.status} />
              <span className="run-name">
                <span className="dim">{run.workflowName}/</span>
                {run.id}
                {run.runNumber > 0 && <span className="dim"> #{run.runNumber}</span>}
              </span>
              <span className="run-note">
                {run.details.error ? `${run.details.error.name}: ${run.details.error.message}` : ""}
                {Object.entries(run.labels).map(([key, value]) => (
                  <span key={key} className="tag">
                    {key}:{value}
                  </span>
                ))}
              </span>
              <span className="run-time dim">
                <Time at={run.updatedAt} />
              </span>
            </Link>
          );
        })}
      </div>
      {loading && <p className="dim">Reading more…</p>}
    </section>
  );
}

const acts = ["retry", "pause", "resume", "cancel", "restart", "terminate"] as const;

function Bulk({ search, failed }: { search: RunsSearch; failed: boolean }) {
  const [act, setAct] = useState<(typeof acts)[number]>("retry");
  const [open, setOpen] = useState(false);
  const chosen = bulkFilter(search);
  const problem =
    "problem" in chosen ? chosen.problem : failed ? "The list cannot be read, so nothing can be chosen." : "";
  return (
    <div className="bulk">
      <span className="dim">All runs that match:</span>
      <select
        aria-label="Act on all runs that match"
        value={act}
        onChange={(event) => setAct(event.target.value as typeof act)}
      >
        {acts.map((word) => (
          <option key={word}>{word}</option>
        ))}
      </select>
      <button type="button" disabled={problem !== ""} onClick={() => setOpen(true)}>
        Dry run
      </button>
      {problem && <span className="dim small">{problem}</span>}
      {open && "filter" in chosen && <DryRun act={act} filter={chosen.filter} close={() => setOpen(false)} />}
    </div>
  );
}

function DryRun(props: { act: (typeof acts)[number]; filter: Schemas["BulkFilter"]; close: () => void }) {
  const { act, filter, close } = props;
  const [result, setResult] = useState<Schemas["BulkResult"] | null>(null);
  // A restarted run can end and match again: only runs that were counted are restarted.
  const [before] = useState(() => new Date().toISOString());
  const chosen = act === "restart" ? { ...filter, createdBefore: before } : filter;
  const send = (dryRun: boolean) =>
    ok(api.POST("/runs/bulk", { body: { action: act, filter: chosen, dryRun } }));
  const counted = useQuery({ queryKey: ["bulk", act, filter], queryFn: () => send(true), gcTime: 0 });
  return (
    <Dialog title={`${act} all runs that match`} close={close}>
      <div className="dialog-body">
        <Loaded query={counted}>
          {(data) => (
            <p>
              <strong>
                {String(data.matched)}
                {data.more ? "+" : ""}
              </strong>{" "}
              {data.matched === 1 ? "run" : "runs"} with a status that accepts “{act}” would be changed. One
              request changes at most 1,000.
            </p>
          )}
        </Loaded>
        {result && (
          <div className="notice" role="status">
            <p>
              Done: {String(result.done)} of {String(result.matched)}
              {result.more && "; more match, act again to continue"}.
            </p>
            {result.failed.slice(0, 10).map((failure) => (
              <p key={`${failure.workflowName}/${failure.id}`} className="bad">
                {failure.workflowName}/{failure.id}: {failure.code}: {failure.message}
              </p>
            ))}
          </div>
        )}
      </div>
      <div className="dialog-foot">
        <button type="button" onClick={close}>
          Close
        </button>
        {counted.data && counted.data.matched > 0 && (
          <Act
            label={`${act} ${counted.data.matched}${counted.data.more ? "+" : ""}`}
            danger={["terminate", "cancel", "restart"].includes(act)}
            act={async () => setResult(await send(false))}
            done={() => counted.refetch()}
          />
        )}
      </div>
    </Dialog>
  );
}
