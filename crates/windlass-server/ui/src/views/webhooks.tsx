import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { ApiError, api, ok, type Schemas } from "../api/client";
import { useMay } from "../app";
import { Act, Card, Empty, Loaded, Page, Status, Time } from "../parts";

export function Webhooks() {
  const disabled = useQuery({
    queryKey: ["lists", "webhooks"],
    queryFn: ({ signal }) => ok(api.GET("/webhooks/disabled", { signal })),
    retry: false,
  });
  const isAbsent = disabled.error instanceof ApiError && disabled.error.status === 404;
  return (
    <Page title="Webhooks">
      {isAbsent ? (
        <Empty title="This server sends no webhooks">
          <p>
            It was built without the feature <code>webhooks</code>.
          </p>
        </Empty>
      ) : (
        <>
          <Disabled query={disabled} />
          <Deliveries state="pending" title="Waiting or in progress" />
          <Deliveries state="dead" title="Given up" />
          <p className="dim small">
            A webhook that was delivered is in no list here. The run that sent it has a receipt in its tab
            “data”, if its program asks for one.
          </p>
        </>
      )}
    </Page>
  );
}

type DisabledQuery = {
  data: Schemas["DisabledEndpoints"] | undefined;
  error: unknown;
  isPending: boolean;
  refetch: () => unknown;
};

function Disabled({ query: disabled }: { query: DisabledQuery }) {
  const may = useMay();
  return (
    <Loaded query={disabled}>
      {(data) =>
        data.endpoints.length === 0 ? (
          <p className="dim">
            No endpoint is disabled. One that answers 410 Gone is, until somebody enables it again.
          </p>
        ) : (
          // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
          <section className="card scroll" tabIndex={0} aria-label="Disabled endpoints">
            <table>
              <thead>
                <tr>
                  <th>Endpoint</th>
                  <th>Disabled</th>
                  <th>By webhook</th>
                  <th>
                    <span className="visually-hidden">Acts</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {data.endpoints.map((endpoint) => (
                  <tr key={endpoint.url}>
                    <td className="mono">{endpoint.url}</td>
                    <td>
                      <Time at={endpoint.since} />
                    </td>
                    <td className="mono small">{endpoint.webhookId}</td>
                    <td>
                      {may("manage") && (
                        <Act
                          label="Enable"
                          ask={<p>Webhooks are sent to {endpoint.url} again.</p>}
                          act={() => ok(api.POST("/webhooks/enable", { body: { url: endpoint.url } }))}
                          done={() => disabled.refetch()}
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
  );
}

function Deliveries({ state, title }: { state: "pending" | "dead"; title: string }) {
  const deliveries = useInfiniteQuery({
    queryKey: ["lists", "deliveries", state],
    retry: false,
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      ok(
        api.GET("/webhooks/deliveries", {
          signal,
          params: { query: { state, pageSize: 50, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.nextCursor ?? undefined,
  });
  const rows = deliveries.data?.pages.flatMap((page) => page.deliveries) ?? [];
  return (
    <Card title={title} aside={state === "dead" && <Link to="/dead-letters">Dead letters</Link>}>
      <Loaded query={deliveries}>
        {() =>
          rows.length === 0 ? (
            <p className="dim">{state === "dead" ? "No webhook was given up." : "No webhook waits."}</p>
          ) : (
            <ul className="messages">
              {rows.map((row) => (
                <DeliveryRow key={row.taskId} row={row} />
              ))}
            </ul>
          )
        }
      </Loaded>
      {deliveries.hasNextPage && (
        <button
          type="button"
          disabled={deliveries.isFetchingNextPage}
          onClick={() => deliveries.fetchNextPage()}
        >
          Read more
        </button>
      )}
    </Card>
  );
}

function DeliveryRow({ row }: { row: Schemas["Delivery"] }) {
  return (
    <li>
      <Status status={row.state} /> <strong>{row.eventType ?? "webhook"}</strong>{" "}
      <span className="mono wrap">{row.url}</span>{" "}
      <span className="dim small">
        {row.attempts} failed {row.attempts === 1 ? "attempt" : "attempts"} · <Time at={row.since} />
        {row.dueAt && (
          <>
            {" "}
            · next attempt <Time at={row.dueAt} />
          </>
        )}{" "}
        · <span className="mono">{row.taskId}</span>
      </span>
      {row.lastError && <p className="bad">{row.lastError}</p>}
    </li>
  );
}
