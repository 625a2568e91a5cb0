// What became of the effects that a run enqueued.
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { at, call } from "../api/raw";
import { Card, ExactTime, Failed, Status } from "../parts";
import type { RunRef } from "./run";

type Receipt = {
  taskId: string;
  name: string;
  outcome: string;
  attempts: number;
  requeues: number;
  enqueuedAt: string;
  settledAt: string;
  error?: { code: string; message?: string } | null;
};

export function Receipts({ run }: { run: RunRef }) {
  const receipts = useInfiniteQuery({
    queryKey: ["run", run.runKey, "receipts", run.generation],
    retry: false,
    initialPageParam: "",
    queryFn: ({ pageParam, signal }) => {
      const query = new URLSearchParams({ pageSize: "50" });
      if (run.generation !== undefined) query.set("runNumber", String(run.generation));
      if (pageParam) query.set("cursor", pageParam);
      const path = at("workflows", run.workflowName, "instances", run.instanceId, "receipts");
      return call<{ receipts: Receipt[]; nextCursor?: string | null }>(`${path}?${query}`, { signal });
    },
    getNextPageParam: (page) => page.nextCursor ?? undefined,
  });
  const all = receipts.data?.pages.flatMap((page) => page.receipts) ?? [];
  if (receipts.error && all.length === 0) return <Failed error={receipts.error} />;
  // Most runs have no effects.
  if (all.length === 0) return null;
  return (
    <Card title="Effects that were settled">
      <ul className="messages">
        {all.map((one) => (
          <li key={one.taskId}>
            <Status status={one.outcome} /> <strong>{one.name}</strong>{" "}
            <span className="dim small">
              <ExactTime at={one.settledAt} /> · {one.attempts} {one.attempts === 1 ? "attempt" : "attempts"}
              {one.requeues > 0 && `, requeued ${one.requeues} times`} ·{" "}
              <span className="mono">{one.taskId}</span>
            </span>
            {one.error && (
              <p className="bad">
                {one.error.code} {one.error.message}
              </p>
            )}
            {one.outcome === "dead" && (
              <Link to="/dead-letters" search={{ run: run.runKey }}>
                Its dead letter
              </Link>
            )}
          </li>
        ))}
      </ul>
      {receipts.hasNextPage && (
        <button type="button" disabled={receipts.isFetchingNextPage} onClick={() => receipts.fetchNextPage()}>
          Read more
        </button>
      )}
    </Card>
  );
}
