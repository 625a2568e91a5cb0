import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { api, ok, type Schemas } from "../api/client";
import { queries, useMay } from "../app";
import { JsonView } from "../jsonview";
import { Act, Empty, Failed, Page, Time } from "../parts";

type Letter = Schemas["DurableLetter"];

export function DeadLetters() {
  const letters = useInfiniteQuery({
    queryKey: ["lists", "letters"],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam }) =>
      ok(api.GET("/durable/dlq", { params: { query: { limit: 100, cursor: pageParam } } })),
    getNextPageParam: (page) => page.cursor ?? undefined,
  });
  const all = letters.data?.pages.flatMap((page) => page.entries) ?? [];
  const open = all.filter((letter) => !letter.requeued_at);
  const groups = new Map<string, Letter[]>();
  for (const letter of open) {
    // Numbers differ from letter to letter; the rest of the message is the error.
    const key = `${letter.activity_type}\n${letter.last_error.replace(/\d+/g, "#").slice(0, 300)}`;
    groups.set(key, [...(groups.get(key) ?? []), letter]);
  }
  const sorted = [...groups.entries()].sort((a, b) => b[1].length - a[1].length);
  return (
    <Page title="Dead letters">
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
        <Group key={key} letters={group} />
      ))}
      {letters.hasNextPage && (
        <button type="button" disabled={letters.isFetchingNextPage} onClick={() => letters.fetchNextPage()}>
          Read more ({all.length} read)
        </button>
      )}
    </Page>
  );
}

function Group({ letters }: { letters: Letter[] }) {
  const may = useMay();
  const [done, setDone] = useState(0);
  const first = letters[0];
  const requeue = async () => {
    setDone(0);
    for (const letter of letters) {
      await ok(api.POST("/durable/dlq/{id}/requeue", { params: { path: { id: letter.id } } }));
      setDone((count) => count + 1);
    }
  };
  return (
    <section className="card">
      <div className="card-head">
        <h2 className="clip">
          {letters.length} × {first.activity_type}
        </h2>
        {may("manage") && (
          <Act
            label={`Requeue ${letters.length === 1 ? "it" : `all ${letters.length}`}`}
            ask={
              <p>
                {letters.length} {letters.length === 1 ? "task is" : "tasks are"} tried again, and a run that
                failed because of one continues. {done > 0 && `${done} done so far.`}
              </p>
            }
            act={requeue}
            done={() => queries.invalidateQueries({ queryKey: ["lists"] })}
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
            </li>
          ))}
          {letters.length > 50 && <li className="dim">and {letters.length - 50} more</li>}
        </ul>
      </details>
    </section>
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
