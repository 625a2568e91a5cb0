import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { ApiError, api, ok, type Schemas } from "../api/client";
import { queries, useMay, useMe } from "../app";
import { formatCount, formatDuration } from "../format";
import { Act, Card, Dialog, Empty, Failed, Loaded, Page, Time } from "../parts";

export function Workers() {
  const me = useMe();
  const may = useMay();
  const [limit, setLimit] = useState<Limit | "new" | null>(null);
  const queues = useQuery({
    queryKey: ["lists", "queues"],
    queryFn: ({ signal }) => ok(api.GET("/queues", { signal, params: { query: { pageSize: 100 } } })),
  });
  const stats = useQuery({
    queryKey: ["lists", "stats"],
    queryFn: ({ signal }) => ok(api.GET("/durable/tasks/stats", { signal })),
  });
  return (
    <Page title="Workers & queues">
      {me.operator ? (
        <WorkerList />
      ) : (
        <p className="notice">
          The workers of all namespaces are shown to admins of the server's own namespace.
        </p>
      )}
      <Loaded query={queues}>
        {(data) => (
          <>
            {data.turns && data.tasks && (
              <div className="figures">
                {(["turns", "tasks"] as const).map((name) => {
                  const waiting = data[name];
                  return (
                    <div className="figure" key={name}>
                      <span className="dim small">{name === "turns" ? "Turns of runs" : "Tasks"}</span>
                      <strong>{formatCount(waiting?.ready)} ready</strong>
                      <span className="dim small">
                        {formatCount(waiting?.held)} in progress · {formatCount(waiting?.scheduled)} later
                        {waiting?.readyOldestAt && (
                          <>
                            {" "}
                            · oldest <Time at={waiting.readyOldestAt} />
                          </>
                        )}
                      </span>
                    </div>
                  );
                })}
              </div>
            )}
            <Rates />
            <Card
              title="Concurrency limits"
              aside={
                may("manage") && (
                  <button type="button" onClick={() => setLimit("new")}>
                    New limit
                  </button>
                )
              }
            >
              {data.limits.length === 0 ? (
                <p className="dim">
                  None. A program sets one with <code>engine.limit_workflow(…)</code> or{" "}
                  <code>engine.set_limit(…)</code>.
                </p>
              ) : (
                <table>
                  <thead>
                    <tr>
                      <th>Key</th>
                      <th className="number">Held</th>
                      <th className="number">Slots</th>
                      <th className="number">Waiting</th>
                      <th>
                        <span className="visually-hidden">Acts</span>
                      </th>
                    </tr>
                  </thead>
                  <tbody>
                    {data.limits.map((limit) => (
                      <tr key={limit.key}>
                        <td>{limit.key}</td>
                        <td className="number">{limit.held}</td>
                        <td className="number">{limit.slots}</td>
                        <td className="number">{formatCount(limit.waiting)}</td>
                        <td>
                          {may("manage") && (
                            <button type="button" onClick={() => setLimit(limit)}>
                              Change
                            </button>
                          )}
                        </td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              )}
            </Card>
          </>
        )}
      </Loaded>
      {limit && (
        <EditLimit
          limit={limit === "new" ? undefined : limit}
          close={() => setLimit(null)}
          done={() => queues.refetch()}
        />
      )}
      <Breakers />
      <Card title="Activities, last hour">
        <Loaded query={stats}>
          {(data) =>
            Object.keys(data.by_activity_type).length === 0 ? (
              <p className="dim">No activity was tried in the last hour.</p>
            ) : (
              // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
              <section className="scroll" tabIndex={0} aria-label="Activities">
                <table>
                  <thead>
                    <tr>
                      <th>Activity</th>
                      {["Waiting", "In progress", "Completed", "Failed", "Average", "p99"].map((head) => (
                        <th key={head} className="number">
                          {head}
                        </th>
                      ))}
                    </tr>
                  </thead>
                  <tbody>
                    {Object.entries(data.by_activity_type).map(([name, row]) => (
                      <tr key={name}>
                        <td>{name}</td>
                        <td className="number">{String(row.pending)}</td>
                        <td className="number">{String(row.claimed)}</td>
                        <td className="number">{String(row.completed_last_hour)}</td>
                        <td className="number">{String(row.failed_last_hour)}</td>
                        <td className="number">{formatDuration(Number(row.avg_duration_ms))}</td>
                        <td className="number">{formatDuration(Number(row.p99_duration_ms))}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </section>
            )
          }
        </Loaded>
      </Card>
    </Page>
  );
}

// How often attempts may begin, over all processes.
function Rates() {
  const rates = useInfiniteQuery({
    queryKey: ["lists", "rates"],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      ok(api.GET("/rates", { signal, params: { query: { pageSize: 100, cursor: pageParam } } })),
    getNextPageParam: (page) => page.nextCursor ?? undefined,
  });
  const all = rates.data?.pages.flatMap((page) => page.rates) ?? [];
  return (
    <Card title="Rates">
      {rates.error && all.length === 0 && <Failed error={rates.error} retry={() => rates.refetch()} />}
      {rates.data && all.length === 0 && (
        <p className="dim">
          None. A program sets one with <code>engine.rate_limit_queue(…)</code> or{" "}
          <code>engine.rate_limit_activity(…)</code>.
        </p>
      )}
      {all.length > 0 && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
        <section className="scroll" tabIndex={0} aria-label="Rates">
          <table>
            <thead>
              <tr>
                <th>Key</th>
                <th className="number">One attempt every</th>
                <th className="number">At once</th>
                <th>Used up to</th>
                <th>Waiting attempts up to</th>
              </tr>
            </thead>
            <tbody>
              {all.map((rate) => (
                <tr key={rate.key}>
                  <td>{rate.key}</td>
                  <td className="number">
                    {rate.intervalUs === null || rate.intervalUs === undefined
                      ? "held back"
                      : formatDuration(Number(rate.intervalUs) / 1000)}
                  </td>
                  <td className="number">{rate.burst}</td>
                  <td>
                    <Time at={rate.spentUntil} />
                  </td>
                  <td>
                    <Time at={rate.queuedUntil} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
      {rates.hasNextPage && (
        <button type="button" disabled={rates.isFetchingNextPage} onClick={() => rates.fetchNextPage()}>
          Read more
        </button>
      )}
    </Card>
  );
}

function WorkerList() {
  const may = useMay();
  const workers = useQuery({
    queryKey: ["lists", "workers"],
    queryFn: ({ signal }) => ok(api.GET("/durable/workers", { signal, params: { query: { limit: 100 } } })),
    retry: (count, error) => count < 1 && !(error instanceof ApiError && error.status === 403),
  });
  return (
    <Card title="Workers">
      <Loaded query={workers}>
        {(data) =>
          data.workers.length === 0 ? (
            <Empty title="No worker">
              <p>
                A program that opens this store and registers workflows is a worker. <code>windlass dev</code>{" "}
                starts one with samples.
              </p>
            </Empty>
          ) : (
            // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
            <section className="scroll" tabIndex={0} aria-label="Workers">
              <table>
                <thead>
                  <tr>
                    <th>Worker</th>
                    <th>Status</th>
                    <th className="number">Load</th>
                    <th>Activities</th>
                    <th>Started</th>
                    <th>Seen</th>
                    <th>
                      <span className="visually-hidden">Acts</span>
                    </th>
                  </tr>
                </thead>
                <tbody>
                  {data.workers.map((worker) => (
                    <tr key={worker.id}>
                      <td>
                        {worker.worker_group} <span className="dim small">{worker.hostname}</span>
                        <div className="dim small mono">
                          {worker.id.slice(0, 13)} {worker.version && `· ${worker.version}`}
                        </div>
                      </td>
                      <td>
                        <span className={worker.accepting_tasks ? "good" : "warn"}>{worker.status}</span>
                        {worker.backpressure_reason && (
                          <div className="small warn">{worker.backpressure_reason}</div>
                        )}
                      </td>
                      <td className="number">
                        {worker.current_load}/{worker.max_concurrency}
                      </td>
                      <td className="small">{worker.activity_types.slice(0, 6).join(", ") || "–"}</td>
                      <td>
                        <Time at={worker.started_at} />
                      </td>
                      <td>
                        <Time at={worker.last_heartbeat_at} />
                      </td>
                      <td>
                        {may("admin") && worker.status === "active" && (
                          <Act
                            label="Drain"
                            danger
                            ask={
                              <p>
                                The worker finishes what it holds and takes nothing new, until it is
                                restarted.
                              </p>
                            }
                            act={() =>
                              ok(
                                api.POST("/durable/workers/{id}/drain", {
                                  params: { path: { id: worker.id } },
                                }),
                              )
                            }
                            done={() => workers.refetch()}
                          />
                        )}
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </section>
          )
        }
      </Loaded>
    </Card>
  );
}

function Breakers() {
  const may = useMay();
  const breakers = useQuery({
    queryKey: ["lists", "breakers"],
    queryFn: ({ signal }) =>
      ok(api.GET("/durable/circuit-breakers", { signal, params: { query: { limit: 100 } } })),
  });
  return (
    <Card title="Circuit breakers">
      <Loaded query={breakers}>
        {(data) =>
          data.circuit_breakers.length === 0 ? (
            <p className="dim">None. An activity gets one with its options.</p>
          ) : (
            <table>
              <thead>
                <tr>
                  <th>Key</th>
                  <th>State</th>
                  <th className="number">Failures</th>
                  <th>Tries again</th>
                  <th>
                    <span className="visually-hidden">Acts</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {data.circuit_breakers.map((breaker) => (
                  <tr key={breaker.key}>
                    <td>{breaker.key}</td>
                    <td className={breaker.state === "closed" ? "good" : "bad"}>{breaker.state}</td>
                    <td className="number">{String(breaker.failure_count)}</td>
                    <td>
                      <Time at={breaker.retry_at} />
                    </td>
                    <td>
                      {may("manage") && breaker.state !== "closed" && (
                        <Act
                          label="Reset"
                          ask={<p>The breaker closes, and all waiting activities are tried at once.</p>}
                          act={() =>
                            ok(
                              api.POST("/durable/circuit-breakers/{key}/reset", {
                                params: { path: { key: breaker.key } },
                              }),
                            )
                          }
                          done={() => queries.invalidateQueries({ queryKey: ["lists"] })}
                        />
                      )}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )
        }
      </Loaded>
    </Card>
  );
}

type Limit = Schemas["LimitView"];

function EditLimit({ limit, close, done }: { limit?: Limit; close: () => void; done: () => void }) {
  const [error, setError] = useState<unknown>(null);
  const set = async (key: string, slots: number | null) => {
    try {
      await ok(api.PUT("/limits/{key}", { params: { path: { key } }, body: { slots } }));
      close();
      done();
    } catch (caught) {
      setError(caught);
    }
  };
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    set(limit?.key ?? String(form.get("key")), Number(form.get("slots")));
  };
  return (
    <Dialog title={limit ? `Limit ${limit.key}` : "New limit"} close={close}>
      <form className="dialog-body form" onSubmit={submit}>
        {!limit && (
          <label>
            Key <span className="dim">for example workflow:report</span>
            <input name="key" required />
          </label>
        )}
        <label>
          Slots <span className="dim">how many turns and tasks may be in progress at once</span>
          <input name="slots" type="number" min="1" max="1000000" required defaultValue={limit?.slots} />
        </label>
        {error !== null && <Failed error={error} />}
        <div className="dialog-foot">
          {limit && (
            <Act
              label="Remove the limit"
              danger
              ask={<p>As many turns and tasks as the workers take are in progress at once.</p>}
              act={() => set(limit.key, null)}
            />
          )}
          <button type="submit" className="primary">
            Save
          </button>
        </div>
      </form>
    </Dialog>
  );
}
