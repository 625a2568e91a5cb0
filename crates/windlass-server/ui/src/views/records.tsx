import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { api, ok, type Schemas } from "../api/client";
import { useMay } from "../app";
import { JsonView } from "../jsonview";
import { Card, Empty, ExactTime, Failed, Loaded, Page, Time } from "../parts";

export function Records() {
  const search = useSearch({ from: "/records" });
  const navigate = useNavigate();
  const may = useMay();
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const text = (name: string) => String(form.get(name) ?? "").trim() || undefined;
    navigate({ to: "/records", search: { collection: text("collection"), term: text("term") } });
  };
  if (!may("records")) {
    return (
      <Page title="Records">
        <Empty title="This credential cannot read records">
          <p>
            Sign in with a key that has the scope <code>records</code>.
          </p>
        </Empty>
      </Page>
    );
  }
  return (
    <Page title="Records">
      <form className="fields" onSubmit={submit} key={`${search.collection} ${search.term}`}>
        <input
          name="collection"
          aria-label="Collection"
          placeholder="Collection"
          data-filter=""
          required
          defaultValue={search.collection}
        />
        <input
          name="term"
          aria-label="Term name:value"
          placeholder="Term name:value"
          defaultValue={search.term}
        />
        <button type="submit" className="primary">
          Show
        </button>
      </form>
      {search.collection ? (
        <List collection={search.collection} term={search.term} id={search.id} />
      ) : (
        <Empty title="Which collection?">
          <p>
            Records are documents outside runs, such as carts or counters. Programs choose the names of
            collections: <code>engine.records("carts")</code>.
          </p>
          <Collections />
        </Empty>
      )}
    </Page>
  );
}

function Collections() {
  const collections = useInfiniteQuery({
    queryKey: ["lists", "collections"],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      ok(api.GET("/records", { signal, params: { query: { limit: 100, cursor: pageParam } } })),
    getNextPageParam: (page) => page.nextCursor ?? undefined,
  });
  const names = collections.data?.pages.flatMap((page) => page.collections) ?? [];
  return (
    <Loaded query={collections}>
      {() => (
        <>
          {names.length === 0 && <p className="dim">There is no collection yet.</p>}
          <ul className="messages">
            {names.map((name) => (
              <li key={name}>
                <Link to="/records" search={{ collection: name }}>
                  {name}
                </Link>
              </li>
            ))}
          </ul>
          {collections.hasNextPage && (
            <button
              type="button"
              disabled={collections.isFetchingNextPage}
              onClick={() => collections.fetchNextPage()}
            >
              Read more
            </button>
          )}
        </>
      )}
    </Loaded>
  );
}

function List({ collection, term, id }: { collection: string; term?: string; id?: string }) {
  const records = useInfiniteQuery({
    queryKey: ["lists", "records", collection, term],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      ok(
        api.GET("/records/{collection}", {
          signal,
          params: { path: { collection }, query: { term, limit: 100, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.nextCursor ?? undefined,
  });
  const rows = records.data?.pages.flatMap((page) => page.records) ?? [];
  if (records.error && rows.length === 0)
    return <Failed error={records.error} retry={() => records.refetch()} />;
  if (records.isPending) return <p className="dim loading">Reading…</p>;
  if (rows.length === 0 && id === undefined) {
    return (
      <Empty title="No record">
        <p>
          The collection “{collection}” has no record{term ? " with this term" : ""}.
        </p>
      </Empty>
    );
  }
  return (
    <div className="two">
      <Card>
        <table>
          <thead>
            <tr>
              <th>Id</th>
              <th className="number">Revision</th>
              <th>Changed</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.id} aria-selected={row.id === id}>
                <td>
                  <Link to="/records" search={{ collection, term, id: row.id }}>
                    {row.id}
                  </Link>{" "}
                  {row.terms.map((one) => (
                    <span className="tag" key={`${one.name} ${one.value}`}>
                      {one.name}:{one.value}
                    </span>
                  ))}
                </td>
                <td className="number">{String(row.revision)}</td>
                <td>
                  <Time at={row.updatedAt} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
        {records.hasNextPage && (
          <button type="button" disabled={records.isFetchingNextPage} onClick={() => records.fetchNextPage()}>
            Read more
          </button>
        )}
      </Card>
      {id !== undefined && <One key={id} collection={collection} id={id} />}
    </div>
  );
}

/** The record of the address, which may be on a page of the list that was not read. */
function One({ collection, id }: { collection: string; id: string }) {
  const record = useQuery({
    queryKey: ["lists", "record", collection, id],
    retry: false,
    queryFn: ({ signal }) =>
      ok(
        api.GET("/records/{collection}/{id}", {
          signal,
          params: { path: { collection, id }, query: { view: "full" } },
        }),
      ) as Promise<Schemas["RecordView"]>,
  });
  return (
    <Card title={id}>
      <Loaded query={record}>
        {(data) => (
          <>
            <JsonView label={`Revision ${data.revision}`} value={data.value} />
            <Versions collection={collection} id={id} />
          </>
        )}
      </Loaded>
    </Card>
  );
}

function Versions({ collection, id }: { collection: string; id: string }) {
  const versions = useInfiniteQuery({
    queryKey: ["lists", "versions", collection, id],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      ok(
        api.GET("/records/{collection}/{id}/versions", {
          signal,
          params: { path: { collection, id }, query: { limit: 25, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.nextCursor ?? undefined,
  });
  const rows = versions.data?.pages.flatMap((page) => page.versions) ?? [];
  return (
    <Loaded query={versions}>
      {() =>
        rows.length === 0 ? (
          <p className="dim small">No earlier version is kept.</p>
        ) : (
          <>
            <ul className="messages">
              {rows.map((version) => (
                <KeptVersion
                  key={String(version.revision)}
                  collection={collection}
                  id={id}
                  version={version}
                />
              ))}
            </ul>
            {versions.hasNextPage && (
              <button
                type="button"
                disabled={versions.isFetchingNextPage}
                onClick={() => versions.fetchNextPage()}
              >
                Earlier versions
              </button>
            )}
          </>
        )
      }
    </Loaded>
  );
}

type KeptProps = { collection: string; id: string; version: Schemas["VersionView"] };

function KeptVersion({ collection, id, version }: KeptProps) {
  const [open, setOpen] = useState(false);
  const revision = Number(version.revision);
  const kept = useQuery({
    queryKey: ["version", collection, id, revision],
    enabled: open,
    // It never changes.
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
    queryFn: ({ signal }) =>
      ok(
        api.GET("/records/{collection}/{id}/versions/{revision}", {
          signal,
          params: { path: { collection, id, revision }, query: { view: "full" } },
        }),
      ) as Promise<Schemas["VersionView"]>,
  });
  return (
    <li>
      <button type="button" className="j-toggle" aria-expanded={open} onClick={() => setOpen(!open)}>
        <span aria-hidden="true">{open ? "▾" : "▸"}</span> Revision {String(version.revision)}
      </button>{" "}
      <span className="dim">
        <ExactTime at={version.createdAt} /> · {String(version.bytes)} bytes
      </span>
      {open && (
        <Loaded query={kept}>
          {(data) => (
            <>
              <JsonView label={`Document of revision ${revision}`} value={data.value} />
              {data.actor !== undefined && data.actor !== null && (
                <JsonView label="Writer" value={data.actor} />
              )}
              {data.causedBy !== undefined && data.causedBy !== null && (
                <JsonView label="Cause" value={data.causedBy} />
              )}
            </>
          )}
        </Loaded>
      )}
    </li>
  );
}
