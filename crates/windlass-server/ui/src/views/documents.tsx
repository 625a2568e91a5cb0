// Documents: their lifecycle, versions, edit window, approvals and audit.
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { at, call } from "../api/raw";
import { queries, useMay, useMe } from "../app";
import {
  type Document,
  isoOf,
  NoTypes,
  type Note,
  useContract,
  useTypes,
  WithContracts,
  windowName,
} from "../contracts";
import { DiffView } from "../diffview";
import { formatJson, parseJson } from "../json";
import { JsonView } from "../jsonview";
import { Act, Card, Dialog, Empty, ExactTime, Failed, Loaded, Time } from "../parts";
import { type ApprovalPage, ApprovalPages, nextOf, pageOf } from "./approvals";
import { RunLink } from "./run";

export type DocumentsSearch = { type?: string; state?: string; id?: string };
const PAGE = 50;

export function Documents() {
  const may = useMay();
  const types = useTypes();
  const search = useSearch({ from: "/documents" });
  return (
    <WithContracts title="Documents">
      {!may("records") ? (
        <Empty title="You may not read documents">
          <p>
            Documents need a key with the scope <code>records</code>.
          </p>
        </Empty>
      ) : (
        <Loaded query={types}>
          {(data) => {
            const names = data.types.map((one) => one.entityType);
            const type = search.type ?? names[0];
            return type === undefined ? <NoTypes /> : <OfType type={type} names={names} search={search} />;
          }}
        </Loaded>
      )}
    </WithContracts>
  );
}

function OfType({ type, names, search }: { type: string; names: string[]; search: DocumentsSearch }) {
  const navigate = useNavigate();
  const { subject } = useMe();
  const contract = useContract(type);
  const [creating, setCreating] = useState(false);
  const set = (change: DocumentsSearch) => navigate({ to: "/documents", search: { ...search, ...change } });
  return (
    <>
      <div className="fields">
        <select
          aria-label="Type"
          value={type}
          onChange={(event) => set({ type: event.target.value, state: undefined, id: undefined })}
        >
          {names.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <select
          aria-label="State"
          value={search.state ?? ""}
          onChange={(event) => set({ state: event.target.value || undefined })}
        >
          <option value="">every state</option>
          {contract.data?.states.map((state) => (
            <option key={state.name}>{state.name}</option>
          ))}
        </select>
        <Link to="/definitions" search={{ type }}>
          Its definition
        </Link>
        {subject && (
          <button type="button" className="primary" onClick={() => setCreating(true)}>
            New document
          </button>
        )}
      </div>
      <div className="two">
        <List type={type} search={search} />
        {search.id && <Detail key={`${type}/${search.id}`} type={type} id={search.id} />}
      </div>
      {creating && <NewDocument type={type} close={() => setCreating(false)} />}
    </>
  );
}

function List({ type, search }: { type: string; search: DocumentsSearch }) {
  const list = useInfiniteQuery({
    queryKey: ["lists", "documents", type, search.state],
    retry: false,
    initialPageParam: "",
    queryFn: ({ pageParam, signal }) => {
      const query = new URLSearchParams({ limit: String(PAGE) });
      if (search.state) query.set("state", search.state);
      if (pageParam) query.set("after", pageParam);
      return call<{ documents: Document[] }>(`${at("documents", type)}?${query}`, { signal });
    },
    getNextPageParam: (page) => (page.documents.length === PAGE ? page.documents[PAGE - 1].id : undefined),
  });
  const rows = list.data?.pages.flatMap((page) => page.documents) ?? [];
  if (list.error && rows.length === 0) return <Failed error={list.error} retry={() => list.refetch()} />;
  return (
    <Card>
      {list.isPending && <p className="dim loading">Reading…</p>}
      {!list.isPending && rows.length === 0 && (
        <p className="dim">No document{search.state ? " in this state" : " of this type yet"}.</p>
      )}
      {rows.length > 0 && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
        <section className="scroll" tabIndex={0} aria-label="Documents">
          <table>
            <thead>
              <tr>
                <th>Id</th>
                <th>State</th>
                <th className="number">Version</th>
                <th>Window</th>
                <th>Changed</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.id} aria-selected={row.id === search.id}>
                  <td>
                    <Link to="/documents" search={{ ...search, type, id: row.id }}>
                      {row.id}
                    </Link>
                  </td>
                  <td>{row.state}</td>
                  <td className="number">{String(row.version)}</td>
                  <td>{windowName(row.editWindow)}</td>
                  <td>
                    <Time at={isoOf(row.updatedAt)} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
      {list.hasNextPage && (
        <button type="button" disabled={list.isFetchingNextPage} onClick={() => list.fetchNextPage()}>
          Read more
        </button>
      )}
    </Card>
  );
}

const done = () => queries.invalidateQueries();

function Detail({ type, id }: { type: string; id: string }) {
  const document = useQuery({
    queryKey: ["lists", "document", type, id],
    retry: false,
    queryFn: ({ signal }) => call<Document>(at("documents", type, id), { signal }),
  });
  return (
    <Loaded query={document}>
      {(data) => (
        <Card title={`${type}/${id}`}>
          <dl className="facts">
            <Fact name="State">
              <span className="status">{data.state}</span>
            </Fact>
            <Fact name="Version">{String(data.version)}</Fact>
            <Fact name="Edit window">{windowName(data.editWindow)}</Fact>
            <Fact name="Requester">{data.requester}</Fact>
            <Fact name="Editors">{data.editors.join(", ")}</Fact>
            <Fact name="Contract">version {data.envelopeVersion}</Fact>
            {data.amendedFrom && (
              <Fact name="Amends">
                <Link to="/documents" search={{ type, id: data.amendedFrom.id }}>
                  {data.amendedFrom.id}
                </Link>{" "}
                version {data.amendedFrom.version}
              </Fact>
            )}
            <Fact name="Run">
              <RunLink run={{ workflowName: `doc:${type}`, id }} />
            </Fact>
          </dl>
          <Acts document={data} />
          {(data.pending ?? []).map((one) => (
            <p key={`${one.gate} ${one.at}`} className="notice">
              “{one.gate}” of {one.by.id} waits for the run since <ExactTime at={isoOf(one.at)} />.
            </p>
          ))}
          <JsonView label={`Content of version ${data.version}`} value={data.content} />
          <Audit document={data} />
          <Approvals type={type} id={id} />
        </Card>
      )}
    </Loaded>
  );
}

function Fact({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function Acts({ document }: { document: Document }) {
  const { subject } = useMe();
  const { type, id } = document;
  const [editing, setEditing] = useState(false);
  const [rebuilt, setRebuilt] = useState<{ same: boolean; steps: number } | null>(null);
  return (
    <div className="actions">
      {subject &&
        (document.gates ?? []).map((gate) => (
          <Act
            key={gate}
            label={gate}
            ask={
              <p>
                You, {subject.id}, call “{gate}” on {type}/{id} in the state “{document.state}”.
              </p>
            }
            act={() => call(at("documents", type, id, "actions", gate), { method: "POST", body: {} })}
            done={done}
          />
        ))}
      {subject && (
        <button type="button" onClick={() => setEditing(true)}>
          Edit
        </button>
      )}
      <Act
        label="Check the run"
        act={async () =>
          setRebuilt(await call(at("documents", type, id, "rebuild"), { method: "POST", body: {} }))
        }
      />
      {rebuilt && (
        <span role="status" className={rebuilt.same ? "good" : "bad"}>
          {rebuilt.same
            ? `The state of the run follows from its ${rebuilt.steps} steps.`
            : `The state of the run differs from what its ${rebuilt.steps} steps give.`}
        </span>
      )}
      {editing && <Edit document={document} close={() => setEditing(false)} />}
    </div>
  );
}

function Edit({ document, close }: { document: Document; close: () => void }) {
  const [error, setError] = useState<unknown>(null);
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const [content, reason] = ["content", "reason"].map((name) => String(form.get(name) ?? ""));
    try {
      parseJson(content);
      const why = reason === "" ? "" : `,"reason":${JSON.stringify(reason)}`;
      await call(at("documents", document.type, document.id), {
        method: "PATCH",
        body: `{"content":${content}${why}}`,
        headers: { "if-match": `"${document.version}"` },
      });
      close();
      done();
    } catch (caught) {
      setError(caught);
    }
  };
  return (
    <Dialog title={`Edit ${document.type}/${document.id}`} close={close}>
      <form className="dialog-body form" onSubmit={submit}>
        <label>
          Content <span className="dim">JSON; edits of version {String(document.version)} only</span>
          <textarea name="content" rows={12} spellCheck={false} defaultValue={formatJson(document.content)} />
        </label>
        <label>
          Reason <span className="dim">for the audit</span>
          <input name="reason" />
        </label>
        {error !== null && <Failed error={error} />}
        <div className="dialog-foot">
          <button type="submit" className="primary">
            Save as a new version
          </button>
        </div>
      </form>
    </Dialog>
  );
}

// Versions are read one by one: the newest ten, and more when asked for.
function Audit({ document }: { document: Document }) {
  const { type, id, version } = document;
  const [count, setCount] = useState(10);
  const first = Math.max(1, version - count + 1);
  const versions = useQuery({
    queryKey: ["lists", "audit", type, id, version, first],
    queryFn: ({ signal }) =>
      Promise.all(
        Array.from({ length: version - first + 1 }, (_, index) => version - index).map((number) =>
          call<{ version: number; note: Note }>(at("documents", type, id, "versions", String(number)), {
            signal,
          }),
        ),
      ),
  });
  const [compare, setCompare] = useState<number | null>(null);
  return (
    <>
      <h3>Audit</h3>
      <Loaded query={versions}>
        {(rows) => (
          <ul className="messages">
            {rows.map((row) => (
              <li key={row.version}>
                Version {row.version}: <strong>{row.note.who}</strong> {row.note.what}{" "}
                <span className="dim small">
                  <ExactTime at={isoOf(row.note.when)} />
                </span>
                {row.note.why && <p className="text">{row.note.why}</p>}
                {row.version > 1 && (
                  <button
                    type="button"
                    className="plain"
                    aria-expanded={compare === row.version}
                    onClick={() => setCompare(compare === row.version ? null : row.version)}
                  >
                    Changes
                  </button>
                )}
                {compare === row.version && <Changes type={type} id={id} version={row.version} />}
              </li>
            ))}
          </ul>
        )}
      </Loaded>
      {first > 1 && (
        <button type="button" onClick={() => setCount(count + 10)}>
          Earlier versions
        </button>
      )}
    </>
  );
}

function Changes({ type, id, version }: { type: string; id: string; version: number }) {
  const pair = useQuery({
    queryKey: ["lists", "document-pair", type, id, version],
    queryFn: ({ signal }) =>
      Promise.all(
        [version - 1, version].map((number) =>
          call<{ content: unknown }>(at("documents", type, id, "versions", String(number)), { signal }),
        ),
      ),
  });
  return (
    <Loaded query={pair}>
      {([before, after]) => (
        <DiffView
          label={`From version ${version - 1} to ${version}`}
          before={before.content}
          after={after.content}
        />
      )}
    </Loaded>
  );
}

function Approvals({ type, id }: { type: string; id: string }) {
  const path = at("documents", type, id, "approvals");
  const approvals = useInfiniteQuery({
    queryKey: ["lists", "approvals-of", type, id],
    retry: false,
    initialPageParam: "",
    queryFn: ({ pageParam, signal }) => call<ApprovalPage>(`${path}?${pageOf(pageParam)}`, { signal }),
    getNextPageParam: nextOf,
  });
  return (
    <>
      <h3>Approvals</h3>
      <ApprovalPages query={approvals} none="Nobody was asked." />
    </>
  );
}

function NewDocument({ type, close }: { type: string; close: () => void }) {
  const navigate = useNavigate();
  const [error, setError] = useState<unknown>(null);
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const [id, content] = ["id", "content"].map((name) => String(form.get(name) ?? ""));
    try {
      parseJson(content);
      await call(at("documents", type), {
        method: "POST",
        body: `{"id":${JSON.stringify(id)},"content":${content}}`,
      });
      close();
      done();
      navigate({ to: "/documents", search: { type, id } });
    } catch (caught) {
      setError(caught);
    }
  };
  return (
    <Dialog title={`New document of type ${type}`} close={close}>
      <form className="dialog-body form" onSubmit={submit}>
        <label>
          Id
          <input name="id" required maxLength={100} />
        </label>
        <label>
          Content <span className="dim">JSON that fits the schema of the type</span>
          <textarea name="content" rows={8} spellCheck={false} required />
        </label>
        {error !== null && <Failed error={error} />}
        <div className="dialog-foot">
          <button type="submit" className="primary">
            Create
          </button>
        </div>
      </form>
    </Dialog>
  );
}
