import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { ApiError, api, ok, type Schemas } from "../api/client";
import { useMay, useMe } from "../app";
import { Act, Card, Copy, Dialog, Failed, Loaded, Page, Time } from "../parts";

export function Settings() {
  const me = useMe();
  const may = useMay();
  return (
    <Page title="Settings">
      <Card title="You">
        <dl className="facts">
          <div>
            <dt>Namespace</dt>
            <dd>{me.namespace}</dd>
          </div>
          <div>
            <dt>Scopes</dt>
            <dd>{me.scopes.join(", ") || "none"}</dd>
          </div>
          {me.subject && (
            <div>
              <dt>Person</dt>
              <dd>
                {me.subject.id} {me.subject.roles.length > 0 && `(${me.subject.roles.join(", ")})`}
              </dd>
            </div>
          )}
          <div>
            <dt>Server</dt>
            <dd>{me.version}</dd>
          </div>
        </dl>
      </Card>
      {may("admin") ? (
        <Keys />
      ) : (
        <p className="notice">API keys are shown to callers with the scope “admin”.</p>
      )}
      {me.operator && (
        <>
          <Namespaces />
          <Config />
        </>
      )}
    </Page>
  );
}

function Namespaces() {
  const namespaces = useQuery({
    queryKey: ["lists", "namespaces"],
    queryFn: ({ signal }) => ok(api.GET("/namespaces", { signal })),
  });
  return (
    <Card title="Namespaces">
      <Loaded query={namespaces}>
        {(data) => (
          <ul className="messages">
            {data.namespaces.map((one) => (
              <li key={one.name}>
                <strong>{one.name}</strong>{" "}
                <span className="dim">
                  {Object.entries(one.counts)
                    .map(([status, count]) => `${count} ${status}`)
                    .join(", ") || "no runs"}
                </span>
              </li>
            ))}
          </ul>
        )}
      </Loaded>
    </Card>
  );
}

function Config() {
  const config = useQuery({
    queryKey: ["config"],
    queryFn: ({ signal }) => ok(api.GET("/config", { signal })),
  });
  return (
    <Card title="Configuration">
      <Loaded query={config}>
        {(data) => (
          <>
            <p className="small">
              Version {data.version}, namespace {data.namespace}, base {data.base || "/"}
              {data.routeSets.length > 0 && `, routes of ${data.routeSets.join(", ")}`}.
            </p>
            {data.settings.length === 0 ? (
              <p className="dim">
                The program shows no settings here: it sets its options in code. <code>windlass server</code>{" "}
                shows its settings with their origins.
              </p>
            ) : (
              // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
              <section className="scroll" tabIndex={0} aria-label="Configuration">
                <table>
                  <thead>
                    <tr>
                      <th>Setting</th>
                      <th>Value</th>
                      <th>From</th>
                    </tr>
                  </thead>
                  <tbody>
                    {data.settings.map((setting) => (
                      <tr key={setting.name}>
                        <td>{setting.name}</td>
                        <td className="mono">{setting.value}</td>
                        <td>{setting.from}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </section>
            )}
          </>
        )}
      </Loaded>
    </Card>
  );
}

function Keys() {
  const [creating, setCreating] = useState(false);
  const keys = useInfiniteQuery({
    queryKey: ["keys"],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      ok(api.GET("/keys", { signal, params: { query: { pageSize: 100, cursor: pageParam } } })),
    getNextPageParam: (page) => page.nextCursor ?? undefined,
    retry: false,
  });
  const rows = keys.data?.pages.flatMap((page) => page.keys) ?? [];
  const isAbsent = keys.error instanceof ApiError && keys.error.code === "KEYS_NOT_FOUND";
  return (
    <Card
      title="API keys"
      aside={
        !isAbsent && (
          <button type="button" className="primary" onClick={() => setCreating(true)}>
            New key
          </button>
        )
      }
    >
      {isAbsent ? (
        <p className="dim">This server keeps no API keys: its program authenticates requests.</p>
      ) : keys.error && rows.length === 0 ? (
        <Failed error={keys.error} retry={() => keys.refetch()} />
      ) : rows.length === 0 ? (
        <p className="dim">No key yet. Create one for each program and each person.</p>
      ) : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
        <section className="scroll" tabIndex={0} aria-label="API keys">
          <table>
            <thead>
              <tr>
                <th>Name</th>
                <th>Scopes</th>
                <th>Created</th>
                <th>Expires</th>
                <th>
                  <span className="visually-hidden">Acts</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {rows.map((key) => (
                <tr key={key.id}>
                  <td>
                    {key.name} <span className="dim small mono">wl_{key.id}_…</span>
                    {key.subject && <div className="dim small">{key.subject.id}</div>}
                  </td>
                  <td>{key.scopes.join(", ")}</td>
                  <td>
                    <Time at={key.createdAt} />
                  </td>
                  <td>
                    {key.revokedAt ? <span className="bad">revoked</span> : <Time at={key.expiresAt} />}
                  </td>
                  <td>
                    {!key.revokedAt && (
                      <Act
                        label="Revoke"
                        danger
                        ask={
                          <p>
                            Requests with the key “{key.name}” are rejected from now on. It cannot be undone.
                          </p>
                        }
                        act={() => ok(api.DELETE("/keys/{id}", { params: { path: { id: key.id } } }))}
                        done={() => keys.refetch()}
                      />
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
      {creating && (
        <NewKey
          close={() => {
            setCreating(false);
            keys.refetch();
          }}
        />
      )}
    </Card>
  );
}

const scopes: Schemas["Scope"][] = [
  "read",
  "create",
  "manage",
  "send-event",
  "records",
  "decide",
  "define",
  "tick",
  "admin",
];

function NewKey({ close }: { close: () => void }) {
  const [key, setKey] = useState<string | null>(null);
  const [error, setError] = useState<unknown>(null);
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const days = Number(form.get("days"));
    const person = String(form.get("person") ?? "").trim();
    const roles = String(form.get("roles") ?? "")
      .split(/[\s,]+/)
      .filter((role) => role !== "");
    try {
      const created = await ok(
        api.POST("/keys", {
          body: {
            name: String(form.get("name")),
            scopes: form.getAll("scope").map(String) as Schemas["Scope"][],
            subject: person === "" ? undefined : { id: person, roles },
            expiresInMs: days > 0 ? days * 86_400_000 : undefined,
          },
        }),
      );
      setKey(created.key);
    } catch (caught) {
      setError(caught);
    }
  };
  return (
    <Dialog title="New API key" close={close}>
      {key ? (
        <div className="dialog-body">
          <p>Copy the key now. The server keeps only a digest of it.</p>
          <p className="mono wrap">{key}</p>
          <Copy text={key} label="Copy" />
        </div>
      ) : (
        <form className="dialog-body form" onSubmit={submit}>
          <label>
            Name
            <input name="name" required maxLength={100} />
          </label>
          <fieldset>
            <legend>Scopes</legend>
            {scopes.map((scope) => (
              <label key={scope} className="check">
                <input type="checkbox" name="scope" value={scope} defaultChecked={scope === "read"} /> {scope}
              </label>
            ))}
          </fieldset>
          <label>
            Person <span className="dim">who decides and publishes with it; empty for a program</span>
            <input name="person" autoComplete="off" />
          </label>
          <label>
            Roles of the person <span className="dim">separated by commas</span>
            <input name="roles" autoComplete="off" />
          </label>
          <label>
            Expires after days <span className="dim">empty for never</span>
            <input name="days" type="number" min="1" max="3650" />
          </label>
          {error !== null && <Failed error={error} />}
          <div className="dialog-foot">
            <button type="submit" className="primary">
              Create
            </button>
          </div>
        </form>
      )}
    </Dialog>
  );
}
