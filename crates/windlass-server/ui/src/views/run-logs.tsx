import { useInfiniteQuery } from "@tanstack/react-query";
import { api, ok } from "../api/client";
import { compactJson } from "../json";
import { Empty, ExactTime, Failed } from "../parts";
import { VirtualList } from "../virtual";
import type { RunRef } from "./run";
import { logLevels, readRunSearch, useRunSearch } from "./run-search";

export function LogsTab({ run }: { run: RunRef }) {
  const [search, set] = useRunSearch();
  const path = { workflowName: run.workflowName, instanceId: run.instanceId };
  const level = search.level ?? "debug";
  const text = search.find ?? "";
  const step = search.lines ?? search.step ?? "";
  const logs = useInfiniteQuery({
    queryKey: ["run", run.runKey, "logs", run.generation, level],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      ok(
        api.GET("/workflows/{workflowName}/instances/{instanceId}/history", {
          signal,
          params: {
            path,
            query: {
              runNumber: run.generation,
              includeLogs: true,
              logLevel: level,
              pageSize: 100,
              logsCursor: pageParam,
              order: "desc",
            },
          },
        }),
      ),
    getNextPageParam: (page) => page.logsCursor ?? undefined,
  });
  const lines = logs.data?.pages.flatMap((page) => page.logs ?? []) ?? [];
  const low = text.trim().toLowerCase();
  const shown = lines.filter(
    (line) =>
      (step === "" || line.stepKey === step) && (low === "" || line.message.toLowerCase().includes(low)),
  );
  return (
    <>
      <div className="fields">
        <select
          aria-label="Lowest level"
          value={level}
          onChange={(event) => set({ level: readRunSearch({ level: event.target.value }).level })}
        >
          {logLevels.map((word) => (
            <option key={word}>{word}</option>
          ))}
        </select>
        <input
          aria-label="Message contains"
          placeholder="Message contains"
          data-filter=""
          value={text}
          onChange={(event) => set({ find: event.target.value || undefined })}
        />
        <input
          aria-label="Step key"
          placeholder="Step key"
          value={step}
          onChange={(event) => set({ lines: event.target.value || undefined, step: undefined })}
        />
      </div>
      {logs.error && lines.length === 0 && <Failed error={logs.error} retry={() => logs.refetch()} />}
      {!logs.isPending && shown.length === 0 ? (
        <Empty title="No log line">
          <p>
            Code writes lines with <code>ctx.log().info("…")</code>. A lower level or an empty filter shows
            more.
          </p>
        </Empty>
      ) : (
        <VirtualList
          items={shown}
          keyOf={(line) => String(line.id)}
          height={28}
          label="Log lines"
          className="logs"
          row={(line) => (
            <div className={`log l-${line.level}`}>
              <span className="dim small">
                <ExactTime at={line.createdAt} />
              </span>
              <span className="level">{line.level}</span>
              <span>
                {line.message}
                {line.data !== null && line.data !== undefined && (
                  <span className="dim mono"> {compactJson(line.data)}</span>
                )}
                {line.stepKey && <span className="tag">{line.stepKey}</span>}
              </span>
            </div>
          )}
        />
      )}
      {logs.hasNextPage && (
        <button type="button" disabled={logs.isFetchingNextPage} onClick={() => logs.fetchNextPage()}>
          Read older lines
        </button>
      )}
    </>
  );
}
