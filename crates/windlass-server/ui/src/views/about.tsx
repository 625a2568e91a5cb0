// What a request is about: a snapshot, or a revision of a record with what has changed since another one.
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { ApiError, api, ok } from "../api/client";
import { at, call } from "../api/raw";
import { useMay } from "../app";
import { DiffView } from "../diffview";
import { JsonView } from "../jsonview";
import { Loaded } from "../parts";

type RecordRef = { collection: string; id: string; revision: number };
/** The revision that the reader approved last. */
type Approved = { request: string; revision: number; at: string };
type What = { digest: string; snapshot?: unknown } & Partial<RecordRef>;

export function About({ about, approved }: { about: unknown; approved?: Approved | null }) {
  if (about === null || about === undefined) return null;
  const what = about as What;
  return (
    <>
      <h3>What it is about</h3>
      {what.collection !== undefined && what.id !== undefined ? (
        <OfRecord
          record={{ collection: what.collection, id: what.id, revision: Number(what.revision) }}
          approved={approved}
        />
      ) : (
        <JsonView label="Snapshot" value={what.snapshot} />
      )}
      <p className="dim small mono wrap">{what.digest}</p>
    </>
  );
}

function OfRecord({ record, approved }: { record: RecordRef; approved?: Approved | null }) {
  const may = useMay();
  const { collection, id, revision } = record;
  const link = (
    <Link to="/records" search={{ collection, id }}>
      {collection}/{id}
    </Link>
  );
  if (!may("records")) {
    return (
      <p className="notice">
        Revision {revision} of {collection}/{id}. Its content needs a key with the scope <code>records</code>.
      </p>
    );
  }
  return (
    <>
      <p>
        Revision {revision} of {link}
      </p>
      <Content record={record} />
      <Since record={record} approved={approved} />
    </>
  );
}

type Version = { revision: number; value: unknown };

function Content({ record }: { record: RecordRef }) {
  return (
    <Loaded query={useRevision(record, record.revision)}>
      {(data) =>
        data === null ? (
          <p className="notice">
            Revision {record.revision} is gone: the record has been changed and keeps no versions. A decision
            about it will be refused as stale.
          </p>
        ) : (
          <JsonView label={`Revision ${record.revision}`} value={data.value} />
        )
      }
    </Loaded>
  );
}

// A kept version, or the record itself if that is its revision; null if neither exists.
function useRevision({ collection, id }: RecordRef, revision: number) {
  return useQuery({
    queryKey: ["lists", "revision", collection, id, revision],
    retry: false,
    queryFn: async ({ signal }): Promise<Version | null> => {
      const record = at("records", collection, id);
      try {
        return await call<Version>(`${record}/versions/${revision}?view=full`, { signal });
      } catch (error) {
        if (!(error instanceof ApiError && error.status === 404)) throw error;
      }
      const newest = await call<Version>(`${record}?view=full`, { signal }).catch((error) => {
        if (error instanceof ApiError && error.status === 404) return null;
        throw error;
      });
      return newest && Number(newest.revision) === revision ? newest : null;
    },
  });
}

function Since({ record, approved }: { record: RecordRef; approved?: Approved | null }) {
  const { collection, id, revision } = record;
  const [since, setSince] = useState<number | null>(null);
  const versions = useQuery({
    queryKey: ["lists", "versions", collection, id],
    retry: false,
    queryFn: ({ signal }) =>
      ok(
        api.GET("/records/{collection}/{id}/versions", {
          signal,
          params: { path: { collection, id }, query: { limit: 100 } },
        }),
      ),
  });
  const earlier = (versions.data?.versions ?? [])
    .map((version) => Number(version.revision))
    .filter((number) => number < revision)
    .sort((a, b) => b - a);
  if (earlier.length === 0) return null;
  const mine = approved ? Number(approved.revision) : undefined;
  const chosen = since ?? earlier.find((number) => number === mine) ?? earlier[0];
  return (
    <>
      <label className="small">
        Changes since revision{" "}
        <select value={chosen} onChange={(event) => setSince(Number(event.target.value))}>
          {earlier.map((number) => (
            <option key={number} value={number}>
              {number === mine ? `${number} (you approved it)` : number}
            </option>
          ))}
        </select>
      </label>
      {approved && !earlier.includes(Number(approved.revision)) && (
        <p className="dim small">You approved revision {String(approved.revision)}, which is not kept.</p>
      )}
      <Changes record={record} from={chosen} />
    </>
  );
}

function Changes({ record, from }: { record: RecordRef; from: number }) {
  const before = useRevision(record, from);
  const after = useRevision(record, record.revision);
  if (!before.data || !after.data) return <p className="dim loading">Reading…</p>;
  return (
    <DiffView
      label={`From revision ${from} to ${record.revision}`}
      before={before.data.value}
      after={after.data.value}
    />
  );
}
