// Batches of language model calls, their lanes, budgets, and what calls have cost.
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { at, call } from "../api/raw";
import { queries, useMay, useMe, useNow } from "../app";
import { isoOf } from "../contracts";
import { formatDuration } from "../format";
import { Act, Card, Dialog, Empty, Failed, Loaded, Page, Status, Time } from "../parts";
import { dayBefore, formatUsd, type Spend, spendKeys, sumSpend, type Usage, whole } from "../spend";

export const batchStates = ["waiting", "unknown", "in_flight", "ended", "failed"] as const;
export type BatchesSearch = {
  status?: (typeof batchStates)[number];
  by?: (typeof spendKeys)[number];
  days?: number;
  root?: string;
};

export type Limits = { usd_nanos?: number; tokens?: number; calls?: number };
type Amount = { usd_nanos?: number; tokens?: number; calls?: number };
export type Budget = {
  id: string;
  workflow: string;
  run: string;
  limits: Limits;
  spent: Amount;
  uncertain: Amount;
  reserved: Record<string, Amount>;
  asking?: string;
  refused: boolean;
};
type Batch = {
  intent: string;
  provider: string;
  model?: string | null;
  lane: string;
  status: string;
  provider_batch_id?: string | null;
  provider_state?: string | null;
  provisional: boolean;
  members: number;
  processing?: number | null;
  attempts: number;
  created_at: number;
  updated_at: number;
};
type Lane = {
  id: string;
  provider: string;
  waiting: number;
  in_flight: number;
  p90_seconds?: number | null;
  closed_until?: number | null;
};
export type RootSpend = {
  calls: number;
  usage: Usage;
  cost: number;
  unpriced_calls: number;
  uncertain_calls: number;
  prices: string;
};

/** Whether the server has the routes of agents. */
export function useHasLlm(): boolean {
  return useMe().routeSets.includes("llm");
}

export function Batches() {
  if (!useHasLlm()) {
    return (
      <Page title="Batches & spend">
        <Empty title="This server has no routes of agents">
          <p>
            A program adds <code>windlass_server::llm::routes()</code> to <code>Options::routes</code>.
          </p>
        </Empty>
      </Page>
    );
  }
  return (
    <Page title="Batches & spend">
      <SpendCard />
      <BudgetsCard />
      <LanesCard />
      <BatchesCard />
    </Page>
  );
}

const done = () => queries.invalidateQueries({ queryKey: ["lists"] });

function SpendCard() {
  const search = useSearch({ from: "/batches" });
  const { by = "day", days = 30, root } = search;
  const navigate = useNavigate();
  const from = dayBefore(useNow(), days - 1);
  const spend = useQuery({
    queryKey: ["lists", "spend", from],
    retry: false,
    queryFn: ({ signal }) => call<{ spend: Spend[] }>(`/spend?from=${from}`, { signal }),
  });
  const set = (change: BatchesSearch) =>
    navigate({ to: "/batches", search: { ...search, ...change }, replace: true });
  return (
    <Card
      title="Spend"
      aside={
        <select
          aria-label="Days"
          value={days}
          onChange={(event) => set({ days: Number(event.target.value) })}
        >
          {[1, 7, 30, 90].map((count) => (
            <option key={count} value={count}>
              {count === 1 ? "today" : `last ${count} days`}
            </option>
          ))}
        </select>
      }
    >
      <div className="chips">
        {spendKeys.map((key) => (
          <button
            key={key}
            type="button"
            className="chip"
            aria-pressed={by === key}
            onClick={() => set({ by: key })}
          >
            by {key}
          </button>
        ))}
      </div>
      <Loaded query={spend}>
        {(data) =>
          data.spend.length === 0 ? (
            <p className="dim">No call of a model in these days.</p>
          ) : (
            <SpendTable rows={data.spend} by={by} />
          )
        }
      </Loaded>
      <form
        className="fields"
        onSubmit={(event: FormEvent<HTMLFormElement>) => {
          event.preventDefault();
          set({ root: String(new FormData(event.currentTarget).get("root")).trim() || undefined });
        }}
      >
        <input
          name="root"
          aria-label="Run key of a root"
          placeholder="Run key of a root"
          defaultValue={root}
        />
        <button type="submit">Cost of this run with all its branches</button>
      </form>
      {root && <RootCost runKey={root} />}
    </Card>
  );
}

function SpendTable({ rows, by }: { rows: Spend[]; by: (typeof spendKeys)[number] }) {
  const sums = sumSpend(rows, by);
  const total = sums.reduce((sum, row) => sum + row.cost, 0n);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
    <section className="scroll" tabIndex={0} aria-label="Spend">
      <table>
        <thead>
          <tr>
            <th>{by}</th>
            <th className="number">Calls</th>
            <th className="number">Tokens in</th>
            <th className="number">Tokens out</th>
            <th className="number">Cost</th>
            <th>Not sure</th>
          </tr>
        </thead>
        <tbody>
          {sums.map((row) => (
            <tr key={row.key}>
              <td>
                {by === "workflow" ? (
                  <Link to="/runs" search={{ workflow: row.key }}>
                    {row.key}
                  </Link>
                ) : (
                  row.key
                )}
              </td>
              <td className="number">{row.calls.toLocaleString("en")}</td>
              <td className="number">{row.input.toLocaleString("en")}</td>
              <td className="number">{row.output.toLocaleString("en")}</td>
              <td className="number">{formatUsd(row.cost)}</td>
              <td className="dim small">
                {row.unpriced > 0n && `${row.unpriced} without a price `}
                {row.uncertain > 0n &&
                  `${row.uncertain} without an answer, at most ${formatUsd(row.uncertainCost)}`}
              </td>
            </tr>
          ))}
        </tbody>
        <tfoot>
          <tr>
            <th colSpan={4}>All</th>
            <td className="number">{formatUsd(total)}</td>
            <td />
          </tr>
        </tfoot>
      </table>
    </section>
  );
}

/** What a run and all its branches have cost, from their ledgers. */
export function RootCost({ runKey }: { runKey: string }) {
  const spend = useQuery({
    queryKey: ["run", runKey, "spend"],
    retry: false,
    queryFn: ({ signal }) => call<RootSpend>(at("spend", runKey), { signal }),
  });
  return (
    <Loaded query={spend}>
      {(data) => (
        <dl className="facts">
          <div>
            <dt>Cost with all branches</dt>
            <dd>{formatUsd(data.cost)}</dd>
          </div>
          <div>
            <dt>Calls</dt>
            <dd>{whole(data.calls).toLocaleString("en")}</dd>
          </div>
          <div>
            <dt>Tokens in and out</dt>
            <dd>
              {whole(data.usage.input_tokens).toLocaleString("en")} /{" "}
              {whole(data.usage.output_tokens).toLocaleString("en")}
            </dd>
          </div>
          {whole(data.unpriced_calls) > 0n && (
            <div>
              <dt>Calls without a price</dt>
              <dd>{String(data.unpriced_calls)}</dd>
            </div>
          )}
          {whole(data.uncertain_calls) > 0n && (
            <div>
              <dt>Attempts without an answer</dt>
              <dd>{String(data.uncertain_calls)}</dd>
            </div>
          )}
        </dl>
      )}
    </Loaded>
  );
}

function BudgetsCard() {
  const budgets = useInfiniteQuery({
    queryKey: ["lists", "budgets"],
    retry: false,
    initialPageParam: "",
    queryFn: ({ pageParam, signal }) =>
      call<{ budgets: Budget[]; next?: string | null }>(
        `/budgets?limit=50${pageParam && `&after=${encodeURIComponent(pageParam)}`}`,
        { signal },
      ),
    getNextPageParam: (page) => page.next ?? undefined,
  });
  const all = budgets.data?.pages.flatMap((page) => page.budgets) ?? [];
  return (
    <Card title="Budgets">
      {budgets.error && all.length === 0 && <Failed error={budgets.error} retry={() => budgets.refetch()} />}
      {budgets.data && all.length === 0 && (
        <p className="dim">
          No run has a budget. An agent gets one with <code>Agent::budget(Budget::usd(1.0))</code>.
        </p>
      )}
      {all.length > 0 && <BudgetTable budgets={all} />}
      {budgets.hasNextPage && (
        <button type="button" disabled={budgets.isFetchingNextPage} onClick={() => budgets.fetchNextPage()}>
          Read more
        </button>
      )}
    </Card>
  );
}

/** Budgets with what is left, and the act that raises one. */
export function BudgetTable({ budgets }: { budgets: Budget[] }) {
  const may = useMay();
  const [raising, setRaising] = useState<Budget | null>(null);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
    <section className="scroll" tabIndex={0} aria-label="Budgets">
      <table>
        <thead>
          <tr>
            <th>Run</th>
            <th className="number">Money</th>
            <th className="number">Tokens</th>
            <th className="number">Calls</th>
            <th>State</th>
            <th>
              <span className="visually-hidden">Acts</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {budgets.map((one) => (
            <tr key={one.id}>
              <td>
                <Link to="/runs/$workflow/$id" params={{ workflow: one.workflow, id: one.run }} search={{}}>
                  {one.workflow}/{one.run}
                </Link>
              </td>
              <td className="number">{ofLimit(one, "usd_nanos", formatUsd)}</td>
              <td className="number">{ofLimit(one, "tokens", count)}</td>
              <td className="number">{ofLimit(one, "calls", count)}</td>
              <td className="small">
                {one.asking && <span className="tag">asks for more</span>}
                {one.refused && <span className="tag">more was refused</span>}
                {Object.keys(one.reserved).length > 0 &&
                  `${Object.keys(one.reserved).length} calls under way`}
              </td>
              <td>
                {may("manage") && (
                  <button type="button" onClick={() => setRaising(one)}>
                    Raise
                  </button>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {raising && <Raise budget={raising} close={() => setRaising(null)} />}
    </section>
  );
}

const count = (value: unknown) => whole(value).toLocaleString("en");

function ofLimit(one: Budget, name: keyof Limits, show: (value: unknown) => string): string {
  const spent = show(one.spent[name] ?? 0);
  const limit = one.limits[name];
  return limit === undefined || limit === null ? spent : `${spent} of ${show(limit)}`;
}

function Raise({ budget, close }: { budget: Budget; close: () => void }) {
  const [error, setError] = useState<unknown>(null);
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const members: string[] = [];
    for (const name of ["usd", "tokens", "calls"]) {
      const text = String(form.get(name) ?? "").trim();
      if (text !== "") members.push(`"${name}":${text}`);
    }
    try {
      await call(at("budgets", budget.id, "raise"), { method: "POST", body: `{${members.join(",")}}` });
      queries.invalidateQueries();
      close();
    } catch (caught) {
      setError(caught);
    }
  };
  const has = (name: keyof Limits) => budget.limits[name] !== undefined && budget.limits[name] !== null;
  return (
    <Dialog title={`Raise the budget of ${budget.workflow}/${budget.run}`} close={close}>
      <form className="form" onSubmit={submit}>
        <div className="dialog-body">
          <p>These amounts are added. A run that failed because of the budget can be retried afterwards.</p>
          {has("usd_nanos") && (
            <label>
              US dollars <input name="usd" type="number" step="any" min="0" />
            </label>
          )}
          {has("tokens") && (
            <label>
              Tokens <input name="tokens" type="number" step="1" min="0" />
            </label>
          )}
          {has("calls") && (
            <label>
              Calls <input name="calls" type="number" step="1" min="0" />
            </label>
          )}
          {error !== null && <Failed error={error} />}
        </div>
        <div className="dialog-foot">
          <button type="button" onClick={close}>
            Keep as it is
          </button>
          <button type="submit" className="primary">
            Raise
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function LanesCard() {
  const may = useMay();
  const lanes = useQuery({
    queryKey: ["lists", "lanes"],
    retry: false,
    queryFn: ({ signal }) => call<{ lanes: Lane[] }>("/lanes", { signal }),
  });
  return (
    <Card title="Lanes">
      <Loaded query={lanes}>
        {(data) =>
          data.lanes.length === 0 ? (
            <p className="dim">No call has asked for a batch yet.</p>
          ) : (
            // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
            <section className="scroll" tabIndex={0} aria-label="Lanes">
              <table>
                <thead>
                  <tr>
                    <th>Provider</th>
                    <th>Lane</th>
                    <th className="number">Calls waiting</th>
                    <th className="number">Batches in flight</th>
                    <th className="number">Nine of ten take</th>
                    <th>
                      <span className="visually-hidden">Acts</span>
                    </th>
                  </tr>
                </thead>
                <tbody>
                  {data.lanes.map((lane) => (
                    <tr key={`${lane.provider} ${lane.id}`}>
                      <td>{lane.provider}</td>
                      <td>
                        {lane.id}
                        {lane.closed_until && (
                          <span className="tag">
                            closed until <Time at={isoOf(lane.closed_until)} />
                          </span>
                        )}
                      </td>
                      <td className="number">{count(lane.waiting)}</td>
                      <td className="number">{count(lane.in_flight)}</td>
                      <td className="number">
                        {lane.p90_seconds === null || lane.p90_seconds === undefined
                          ? "–"
                          : formatDuration(Number(lane.p90_seconds) * 1000)}
                      </td>
                      <td>
                        {may("manage") && (
                          <Act
                            label="Flush"
                            ask={
                              <p>
                                All lanes of <strong>{lane.provider}</strong> send now what waits in them. A
                                smaller batch is not cheaper.
                              </p>
                            }
                            act={() =>
                              call(at("lanes", lane.provider, "flush"), { method: "POST", body: {} })
                            }
                            done={done}
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

function BatchesCard() {
  const search = useSearch({ from: "/batches" });
  const { status } = search;
  const navigate = useNavigate();
  const batches = useInfiniteQuery({
    queryKey: ["lists", "batches", status],
    retry: false,
    initialPageParam: "",
    queryFn: ({ pageParam, signal }) => {
      const query = new URLSearchParams({ limit: "50" });
      if (status) query.set("status", status);
      if (pageParam) query.set("after", pageParam);
      return call<{ batches: Batch[]; next?: string | null }>(`/batches?${query}`, { signal });
    },
    getNextPageParam: (page) => page.next ?? undefined,
  });
  const all = batches.data?.pages.flatMap((page) => page.batches) ?? [];
  return (
    <Card title="Batches">
      <div className="chips">
        {batchStates.map((state) => (
          <button
            key={state}
            type="button"
            className="chip"
            aria-pressed={status === state}
            onClick={() =>
              navigate({
                to: "/batches",
                search: { ...search, status: status === state ? undefined : state },
                replace: true,
              })
            }
          >
            {state.replace("_", " ")}
          </button>
        ))}
      </div>
      {batches.error && all.length === 0 && <Failed error={batches.error} retry={() => batches.refetch()} />}
      {batches.data && all.length === 0 && <p className="dim">No batch{status && " with this status"}.</p>}
      {all.length > 0 && <BatchTable batches={all} />}
      {batches.hasNextPage && (
        <button type="button" disabled={batches.isFetchingNextPage} onClick={() => batches.fetchNextPage()}>
          Read more ({all.length} read)
        </button>
      )}
    </Card>
  );
}

function BatchTable({ batches }: { batches: Batch[] }) {
  const may = useMay();
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
    <section className="scroll" tabIndex={0} aria-label="Batches">
      <table>
        <thead>
          <tr>
            <th>Batch</th>
            <th>Status</th>
            <th className="number">Calls</th>
            <th className="number">Not ended</th>
            <th>Formed</th>
            <th>Changed</th>
            <th>
              <span className="visually-hidden">Acts</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {batches.map((one) => (
            <tr key={one.intent}>
              <td>
                <span className="mono wrap">{one.provider_batch_id ?? one.intent}</span>{" "}
                <span className="dim small">
                  {one.provider} {one.model}
                  {one.attempts > 1 && `, sent ${one.attempts} times`}
                </span>
              </td>
              <td>
                <Status status={one.status} />{" "}
                {one.provider_state && <span className="dim small">{one.provider_state}</span>}
                {one.provisional && <span className="tag">not proved yet</span>}
              </td>
              <td className="number">{count(one.members)}</td>
              <td className="number">
                {one.processing === null || one.processing === undefined ? "–" : count(one.processing)}
              </td>
              <td>
                <Time at={isoOf(one.created_at)} />
              </td>
              <td>
                <Time at={isoOf(one.updated_at)} />
              </td>
              <td>
                {may("manage") && !["ended", "failed"].includes(one.status) && (
                  <Act
                    label="Cancel"
                    danger
                    ask={
                      <p>
                        The provider is asked to cancel this batch of {count(one.members)} calls. Calls that
                        it has finished keep their answers and are charged.
                      </p>
                    }
                    act={() => call(at("batches", one.intent, "cancel"), { method: "POST", body: {} })}
                    done={done}
                  />
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
