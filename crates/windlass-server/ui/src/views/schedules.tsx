import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, ok, type Schemas } from "../api/client";
import { useMay } from "../app";
import { formatDuration } from "../format";
import { compactJson } from "../json";
import { Act, Empty, Failed, Page, Time } from "../parts";
import { EditSchedule } from "./schedule-form";

type Schedule = Schemas["ScheduleView"];

export function Schedules() {
  const may = useMay();
  const navigate = useNavigate();
  const [editing, setEditing] = useState<Schedule | "new" | null>(null);
  const schedules = useInfiniteQuery({
    queryKey: ["lists", "schedules"],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      ok(api.GET("/schedules", { signal, params: { query: { pageSize: 100, cursor: pageParam } } })),
    getNextPageParam: (page) => page.nextCursor ?? undefined,
  });
  const rows = schedules.data?.pages.flatMap((page) => page.schedules) ?? [];
  const done = () => schedules.refetch();
  if (schedules.error && rows.length === 0) {
    return (
      <Page title="Schedules">
        <Failed error={schedules.error} retry={() => schedules.refetch()} />
      </Page>
    );
  }
  return (
    <Page
      title="Schedules"
      actions={
        may("manage") &&
        may("create") && (
          <button type="button" className="primary" onClick={() => setEditing("new")}>
            New schedule
          </button>
        )
      }
    >
      {schedules.isPending ? (
        <p className="dim loading">Reading…</p>
      ) : rows.length === 0 ? (
        <Empty title="No schedule">
          <p>
            Create one with <code>windlass schedules set nightly --workflow report --cron "0 3 * * *"</code>.
          </p>
        </Empty>
      ) : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
        <section className="card scroll" tabIndex={0} aria-label="Schedules">
          <table>
            <thead>
              <tr>
                <th>Name</th>
                <th>Starts</th>
                <th>When</th>
                <th>Next</th>
                <th>Last</th>
                <th>
                  <span className="visually-hidden">Acts</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => {
                const params = { path: { name: row.name } };
                return (
                  <tr key={row.name}>
                    <td>
                      {row.name} {row.paused && <span className="tag">paused</span>}
                      {row.blocked && <div className="bad small">{row.blocked}</div>}
                    </td>
                    <td>
                      <Link to="/runs" search={{ workflow: row.workflow }}>
                        {row.workflow}
                      </Link>{" "}
                      <span className="dim small mono">{compactJson(row.params).slice(0, 60)}</span>
                    </td>
                    <td>
                      {row.cron ? (
                        <span className="mono">
                          {row.cron} {row.timezone ?? ""}
                        </span>
                      ) : (
                        `every ${formatDuration(Number(row.everyMs ?? 0))}`
                      )}
                    </td>
                    <td>
                      <Time at={row.paused ? null : row.nextAt} />
                    </td>
                    <td>
                      {row.lastRun ? (
                        <Link
                          to="/runs/$workflow/$id"
                          params={{ workflow: row.workflow, id: row.lastRun }}
                          search={{}}
                        >
                          <Time at={row.lastAt} />
                        </Link>
                      ) : (
                        <Time at={row.lastAt} />
                      )}
                    </td>
                    <td>
                      {may("manage") && (
                        <div className="actions">
                          {may("create") && (
                            <>
                              <Act
                                label="Run now"
                                ask={
                                  <p>
                                    A run of “{row.workflow}” starts with the input of the schedule. The next
                                    firing stays.
                                  </p>
                                }
                                act={async () => {
                                  const run = await ok(api.POST("/schedules/{name}/run", { params }));
                                  navigate({
                                    to: "/runs/$workflow/$id",
                                    params: { workflow: run.workflowName, id: run.id },
                                    search: {},
                                  });
                                }}
                              />
                              <button type="button" onClick={() => setEditing(row)}>
                                Edit
                              </button>
                            </>
                          )}
                          {row.paused ? (
                            <Act
                              label="Resume"
                              act={() => ok(api.POST("/schedules/{name}/resume", { params }))}
                              done={done}
                            />
                          ) : (
                            <Act
                              label="Pause"
                              act={() => ok(api.POST("/schedules/{name}/pause", { params }))}
                              done={done}
                            />
                          )}
                          <Act
                            label="Delete"
                            danger
                            ask={<p>The schedule “{row.name}” starts no more runs. Its runs stay.</p>}
                            act={() => ok(api.DELETE("/schedules/{name}", { params }))}
                            done={done}
                          />
                        </div>
                      )}
                    </td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </section>
      )}
      {schedules.hasNextPage && (
        <button
          type="button"
          disabled={schedules.isFetchingNextPage}
          onClick={() => schedules.fetchNextPage()}
        >
          Read more
        </button>
      )}
      {editing && (
        <EditSchedule
          schedule={editing === "new" ? undefined : editing}
          close={() => setEditing(null)}
          done={done}
        />
      )}
    </Page>
  );
}
