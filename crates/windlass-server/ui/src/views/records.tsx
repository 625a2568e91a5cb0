import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import type { FormEvent } from "react";
import { api, ok } from "../api/client";
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
        </Empty>
      )}
    </Page>
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
  const chosen = rows.find((row) => row.id === id);
  if (records.error && rows.length === 0)
    return <Failed error={records.error} retry={() => records.refetch()} />;
  if (records.isPending) return <p className="dim loading">Reading…</p>;
  if (rows.length === 0) {
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
      {chosen && (
        <Card title={chosen.id}>
          <JsonView label={`Revision ${chosen.revision}`} value={chosen.value} />
          <Versions collection={collection} id={chosen.id} />
        </Card>
      )}
    </div>
  );
}

function Versions({ collection, id }: { collection: string; id: string }) {
  const versions = useQuery({
    queryKey: ["lists", "versions", collection, id],
    queryFn: ({ signal }) =>
      ok(
        api.GET("/records/{collection}/{id}/versions", {
          signal,
          params: { path: { collection, id }, query: { limit: 25 } },
        }),
      ),
  });
  return (
    <Loaded query={versions}>
      {(data) =>
        data.versions.length === 0 ? (
          <p className="dim small">No earlier version is kept.</p>
        ) : (
          <ul className="messages">
            {data.versions.map((version) => (
              <li key={String(version.revision)}>
                Revision {String(version.revision)} ·{" "}
                <span className="dim">
                  <ExactTime at={version.createdAt} /> · {String(version.bytes)} bytes
                </span>
              </li>
            ))}
          </ul>
        )
      }
    </Loaded>
  );
}
