import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { api, ok, type Schemas } from "../api/client";
import { queries, useMay } from "../app";
import { JsonView } from "../jsonview";
import { Act, Dialog, Empty, Failed, Loaded, Page, Time } from "../parts";

type Letter = Schemas["DurableLetter"];

export function DeadLetters() {
  const { run } = useSearch({ from: "/dead-letters" });
  const may = useMay();
  const [purging, setPurging] = useState(false);
  const letters = useInfiniteQuery({
    queryKey: ["lists", "letters", run],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      ok(
        api.GET("/durable/dlq", {
          signal,
          params: { query: { limit: 100, workflow_id: run, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.cursor ?? undefined,
  });
  const all = letters.data?.pages.flatMap((page) => page.entries) ?? [];
  const open = all.filter((letter) => !letter.requeued_at);
  const groups = new Map<string, Letter[]>();
  for (const letter of open) {
    // Numbers differ from letter to letter; the rest of the message is the error.
    const key = `${letter.activity_type}\n${errorKind(letter.last_error)}`;
    groups.set(key, [...(groups.get(key) ?? []), letter]);
  }
  const sorted = [...groups.entries()].sort((a, b) => b[1].length - a[1].length);
  return (
    <Page
      title="Dead letters"
      actions={
        may("manage") && (
          <button type="button" onClick={() => setPurging(true)}>
            Purge…
          </button>
        )
      }
    >
      {purging && <PurgeOld close={() => setPurging(false)} />}
      {run && (
        <div className="chips">
          <Link className="chip" to="/dead-letters" search={{}}>
            of the run {run} ✕
          </Link>
        </div>
      )}
      {letters.error && all.length === 0 && <Failed error={letters.error} retry={() => letters.refetch()} />}
      {letters.isPending && <p className="dim loading">Reading…</p>}
      {!letters.isPending && !letters.error && open.length === 0 && !letters.hasNextPage && (
        <Empty title="No dead letter">
          <p>
            A task that failed for the last time comes here, with its errors. Requeue it after the cause is
            fixed.
          </p>
        </Empty>
      )}
      {sorted.map(([key, group]) => (
        <Group key={key} letters={group} run={run} />
      ))}
      {letters.hasNextPage && (
        <button type="button" disabled={letters.isFetchingNextPage} onClick={() => letters.fetchNextPage()}>
          Read more ({all.length} read)
        </button>
      )}
    </Page>
  );
}

/** An error without its numbers, as the server groups errors. */
function errorKind(error: string): string {
  return [...error.replace(/\d+/g, "#")].slice(0, 300).join("");
}

function Group({ letters, run }: { letters: Letter[]; run?: string }) {
  const may = useMay();
  const first = letters[0];
  return (
    <section className="card">
      <div className="card-head">
        <h2 className="clip">
          {letters.length} × {first.activity_type}
        </h2>
        {may("manage") && (
          <RequeueAll
            filter={{
              activity_type: first.activity_type,
              error: errorKind(first.last_error),
              workflow_id: run,
            }}
          />
        )}
      </div>
      <p className="notice error">{first.last_error}</p>
      <details>
        <summary>Show {letters.length === 1 ? "the letter" : "the letters"}</summary>
        <ul className="messages">
          {letters.slice(0, 50).map((letter) => (
            <li key={letter.id}>
              <RunOf letter={letter} /> <span className="dim small">{letter.queue}</span> · {letter.attempts}{" "}
              attempts · <Time at={letter.dead_at} />
              {letter.input !== null && letter.input !== undefined && (
                <JsonView label="Input" value={letter.input} />
              )}
              <JsonView label="Errors" value={letter.error_history} />
              {may("manage") && <OneLetter letter={letter} />}
            </li>
          ))}
          {letters.length > 50 && <li className="dim">and {letters.length - 50} more</li>}
        </ul>
      </details>
    </section>
  );
}

const reread = () => queries.invalidateQueries({ queryKey: ["lists"] });

function OneLetter({ letter }: { letter: Letter }) {
  const params = { path: { id: letter.id } };
  return (
    <div className="actions">
      <Act
        label="Requeue this one"
        ask={<p>The task is tried again. A run that failed because of it continues.</p>}
        act={() => ok(api.POST("/durable/dlq/{id}/requeue", { params }))}
        done={reread}
      />
      <Act
        label="Delete"
        danger
        ask={<p>The letter and its errors are gone. The run that failed because of it stays as it is.</p>}
        act={() => ok(api.DELETE("/durable/dlq/{id}", { params }))}
        done={reread}
      />
    </div>
  );
}

function PurgeOld({ close }: { close: () => void }) {
  const [days, setDays] = useState("30");
  const [queue, setQueue] = useState("");
  const [deleted, setDeleted] = useState<number | null>(null);
  const count = Number(days);
  const isNumber = days.trim() !== "" && Number.isFinite(count) && count >= 0;
  return (
    <Dialog title="Purge dead letters" close={close}>
      <div className="dialog-body form">
        <label>
          Older than, in days{" "}
          <input
            type="number"
            min="0"
            step="any"
            value={days}
            onChange={(event) => setDays(event.target.value)}
          />
        </label>
        <label>
          Queue <span className="dim">empty for all</span>
          <input value={queue} onChange={(event) => setQueue(event.target.value)} />
        </label>
        {deleted !== null && (
          <p className="notice" role="status">
            {deleted} {deleted === 1 ? "letter was" : "letters were"} deleted.
          </p>
        )}
      </div>
      <div className="dialog-foot">
        <button type="button" onClick={close}>
          Close
        </button>
        {isNumber && (
          <Act
            label={`Delete letters older than ${count} days`}
            danger
            ask={
              <p>
                All letters{queue.trim() && ` of the queue “${queue.trim()}”`} that are older than {count}{" "}
                days are deleted, with their errors. This cannot be undone.
              </p>
            }
            act={async () => {
              const older_than = new Date(Date.now() - count * 86_400_000).toISOString();
              const body = { older_than, queue: queue.trim() || undefined };
              setDeleted(Number((await ok(api.POST("/durable/dlq/purge", { body }))).purged));
            }}
            done={reread}
          />
        )}
      </div>
    </Dialog>
  );
}

// Counts on the server first: the page may not have read all letters that match.
function RequeueAll({ filter }: { filter: Schemas["RequeueFilter"] }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>
        Requeue all
      </button>
      {open && <DryRun filter={filter} close={() => setOpen(false)} />}
    </>
  );
}

function DryRun({ filter, close }: { filter: Schemas["RequeueFilter"]; close: () => void }) {
  const [result, setResult] = useState<Schemas["RequeuedMany"] | null>(null);
  const send = (dry_run: boolean) => ok(api.POST("/durable/dlq/requeue", { body: { filter, dry_run } }));
  const counted = useQuery({ queryKey: ["requeue", filter], queryFn: () => send(true), gcTime: 0 });
  return (
    <Dialog title="Requeue all that match" close={close}>
      <div className="dialog-body">
        <Loaded query={counted}>
          {(data) => (
            <p>
              <strong>
                {String(data.matched)}
                {data.more ? "+" : ""}
              </strong>{" "}
              {data.matched === 1 ? "task is" : "tasks are"} tried again. A run that failed because of one
              continues.
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
              <p key={failure.id} className="bad">
                {failure.id}: {failure.code}: {failure.message}
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
            label={`Requeue ${counted.data.matched}${counted.data.more ? "+" : ""}`}
            act={async () => setResult(await send(false))}
            done={() => {
              counted.refetch();
              queries.invalidateQueries({ queryKey: ["lists"] });
            }}
          />
        )}
      </div>
    </Dialog>
  );
}

function RunOf({ letter }: { letter: Letter }) {
  const [run, setRun] = useState<{ workflowName: string; id: string } | null>(null);
  if (!letter.workflow_id) return <span className="mono">{letter.id}</span>;
  if (run) {
    return (
      <Link to="/runs/$workflow/$id" params={{ workflow: run.workflowName, id: run.id }} search={{}}>
        {run.workflowName}/{run.id}
      </Link>
    );
  }
  const find = async () => {
    const path = { runKey: String(letter.workflow_id) };
    setRun(await ok(api.GET("/runs/{runKey}", { params: { path } })));
  };
  return (
    <button type="button" className="plain" onClick={find}>
      Find its run
    </button>
  );
}
