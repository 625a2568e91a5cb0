import { useQuery } from "@tanstack/react-query";
import { ApiError, api, ok } from "../api/client";
import { useMay } from "../app";
import { Act, Empty, Loaded, Page, Time } from "../parts";

export function Webhooks() {
  const may = useMay();
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
        <Loaded query={disabled}>
          {(data) =>
            data.endpoints.length === 0 ? (
              <Empty title="No endpoint is disabled">
                <p>
                  An endpoint that answers 410 Gone is disabled and comes here, until somebody enables it
                  again.
                </p>
              </Empty>
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
      )}
    </Page>
  );
}
