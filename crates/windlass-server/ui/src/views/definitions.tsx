// Definitions of document types: the compiled graph, the changes of each slot, versions, simulation, the editor.
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { ApiError } from "../api/client";
import { at, call } from "../api/raw";
import { queries, useMay, useMe } from "../app";
import {
  type Definition,
  type DefinitionHead,
  type FlowEdge,
  type FlowNode,
  isoOf,
  NoTypes,
  type Problem,
  useCompiled,
  useTypes,
  WithContracts,
  windowName,
} from "../contracts";
import { GraphView } from "../graph/view";
import { formatJson, parseJson } from "../json";
import { JsonView } from "../jsonview";
import { Act, Card, Empty, ExactTime, Failed, Loaded } from "../parts";
import { definitionGraph } from "./document-graph";
import { Playground } from "./playground";
import { SlotEditor, type Template } from "./slot-editor";

export const definitionParts = ["graph", "changes", "editor", "versions", "simulate", "expressions"] as const;
export type DefinitionsSearch = { type?: string; part?: (typeof definitionParts)[number]; slot?: string };

export function Definitions() {
  const types = useTypes();
  const search = useSearch({ from: "/definitions" });
  return (
    <WithContracts title="Definitions">
      <Loaded query={types}>
        {(data) => {
          const names = data.types.map((one) => one.entityType);
          const type = search.type ?? names[0];
          return type === undefined ? <FirstType /> : <OfType type={type} names={names} search={search} />;
        }}
      </Loaded>
    </WithContracts>
  );
}

// An operator starts with the contract of a template.
function FirstType() {
  const { operator, subject } = useMe();
  const templates = useTemplates();
  if (!operator || !subject) return <NoTypes />;
  return (
    <>
      <Empty title="No document type yet">
        <p>Publish the lifecycle contract of a template, and change a copy of its definition.</p>
      </Empty>
      <Loaded query={templates}>
        {(list) => (
          <>
            {list.map((one) => (
              <Card key={one.name} title={one.title}>
                <p>{one.description}</p>
                <Act
                  label={`Publish the type “${one.contract.entityType}”`}
                  ask={<p>Every tenant can use the type. It can be archived, not removed.</p>}
                  act={() => call("/contracts/types", { method: "POST", body: one.contract })}
                  done={() => queries.invalidateQueries()}
                />
              </Card>
            ))}
          </>
        )}
      </Loaded>
    </>
  );
}

export function useTemplates() {
  return useQuery({
    queryKey: ["templates"],
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
    queryFn: ({ signal }) => call<Template[]>("/contracts/templates", { signal }),
  });
}

function useHead(type: string, enabled: boolean) {
  return useQuery({
    queryKey: ["lists", "definition", type],
    enabled,
    retry: false,
    queryFn: ({ signal }) => call<DefinitionHead>(at("contracts", type, "definition"), { signal }),
  });
}

function OfType({ type, names, search }: { type: string; names: string[]; search: DefinitionsSearch }) {
  const navigate = useNavigate();
  const may = useMay();
  const part = search.part ?? "graph";
  const head = useHead(type, may("define"));
  const needs = !may("define");
  return (
    <>
      <div className="fields">
        <select
          aria-label="Type"
          value={type}
          onChange={(event) => navigate({ to: "/definitions", search: { type: event.target.value, part } })}
        >
          {names.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        {head.data?.published ? (
          <span>
            version {head.data.published.version} is published{" "}
            <span className="dim small mono">{head.data.published.hash.slice(0, 19)}…</span>
          </span>
        ) : (
          head.data && (
            <span className="dim">nothing is published: the contract’s defaults are in effect</span>
          )
        )}
        {head.data?.draft && <span className="tag">draft</span>}
        <Link to="/documents" search={{ type }}>
          Its documents
        </Link>
      </div>
      <nav className="tabs" aria-label="Parts of the definition">
        {definitionParts.map((one) => (
          <Link
            key={one}
            to="/definitions"
            search={{ type, part: one }}
            aria-current={one === part ? "page" : undefined}
          >
            {one === "editor" ? "slot editor" : one}
          </Link>
        ))}
      </nav>
      {needs ? (
        <Empty title="You may not define">
          <p>
            Definitions say who approves what, so they need a key with the scope <code>define</code>. The
            graph of a document is in the view of its run.
          </p>
        </Empty>
      ) : part === "graph" ? (
        <CompiledGraph type={type} />
      ) : part === "changes" ? (
        <Changes type={type} />
      ) : part === "simulate" ? (
        <Simulate key={type} type={type} />
      ) : part === "expressions" ? (
        <Playground key={type} type={type} />
      ) : (
        <Loaded query={head}>
          {(data) =>
            part === "editor" ? (
              <SlotEditor key={type} type={type} head={data} slot={search.slot} />
            ) : (
              <Versions type={type} head={data} />
            )
          }
        </Loaded>
      )}
    </>
  );
}

function CompiledGraph({ type }: { type: string }) {
  const compiled = useCompiled(type);
  return (
    <Loaded query={compiled}>
      {(data) => (
        <>
          <p className="dim small mono wrap">{data.hash}</p>
          <GraphView graph={definitionGraph(data, undefined)} label={`Definition of ${type}`} />
        </>
      )}
    </Loaded>
  );
}

type SlotDiff = {
  origin: string;
  addedNodes: FlowNode[];
  addedEdges: FlowEdge[];
  removedEdges: string[];
  editWindow?: { from: unknown; to: unknown };
};

function Changes({ type }: { type: string }) {
  const changes = useQuery({
    queryKey: ["lists", "definition-diff", type],
    retry: false,
    queryFn: ({ signal }) =>
      call<{ slots: Record<string, SlotDiff> }>(at("contracts", type, "diff", "json"), { signal }),
  });
  return (
    <Loaded query={changes}>
      {(data) =>
        Object.keys(data.slots).length === 0 ? (
          <p className="dim">No slot is filled.</p>
        ) : (
          <>
            {Object.entries(data.slots).map(([slot, one]) => (
              <Card key={slot} title={slot} aside={<span className="tag">by the {one.origin}</span>}>
                <ul className="messages">
                  {one.addedNodes.map((node) => (
                    <li key={node.id}>
                      <ins>+ node</ins> <span className="mono">{node.id}</span> {node.label}{" "}
                      <span className="dim">{node.type}</span>
                    </li>
                  ))}
                  {one.addedEdges.map((edge) => (
                    <li key={edge.id}>
                      <ins>+ edge</ins>{" "}
                      <span className="mono">
                        {edge.source} → {edge.target}
                      </span>{" "}
                      {edge.label} {edge.condition && <code>{edge.condition}</code>}
                    </li>
                  ))}
                  {one.removedEdges.map((edge) => (
                    <li key={edge}>
                      <del>− edge</del> <span className="mono">{edge}</span>
                    </li>
                  ))}
                  {one.editWindow && (
                    <li>
                      Edit window: <del>{windowName(one.editWindow.from)}</del>{" "}
                      <ins>{windowName(one.editWindow.to)}</ins>
                    </li>
                  )}
                </ul>
              </Card>
            ))}
          </>
        )
      }
    </Loaded>
  );
}

type DefinitionVersion = {
  definition: Definition;
  hash: string;
  by: string;
  at: number;
  rolledBackTo?: number | null;
};
const done = () => queries.invalidateQueries();

function Versions({ type, head }: { type: string; head: DefinitionHead }) {
  const { subject } = useMe();
  const [count, setCount] = useState(10);
  const last = head.lastVersion;
  const first = Math.max(1, last - count + 1);
  const versions = useQuery({
    queryKey: ["lists", "definition-versions", type, last, first],
    enabled: last > 0,
    queryFn: ({ signal }) =>
      Promise.all(
        Array.from({ length: last - first + 1 }, (_, index) => last - index).map(async (number) => ({
          number,
          ...(await call<DefinitionVersion>(at("contracts", type, "versions", String(number)), { signal })),
        })),
      ),
  });
  const post = (...path: string[]) => call(at("contracts", type, ...path), { method: "POST", body: {} });
  return (
    <Card title="Versions">
      {!subject && <p className="notice">Publishing needs a key for a person.</p>}
      <div className="actions">
        {subject && head.draft && (
          <Act
            label="Publish the draft"
            ask={<p>New documents use it. Documents that exist keep the version that they are pinned to.</p>}
            act={() => post("publish")}
            done={done}
          />
        )}
        {head.published && (
          <Act
            label="Archive"
            danger
            ask={<p>The published version is no longer used; the defaults of the contract are.</p>}
            act={() => post("archive")}
            done={done}
          />
        )}
        {head.draft && (
          <Act
            label="Move the draft to the newest contract"
            ask={<p>The draft is checked against the newest version of the lifecycle contract.</p>}
            act={() => post("rebase")}
            done={done}
          />
        )}
      </div>
      {last === 0 ? (
        <p className="dim">Nothing was published yet.</p>
      ) : (
        <Loaded query={versions}>
          {(rows) => (
            <ul className="messages">
              {rows.map((row) => (
                <li key={row.number}>
                  <strong>Version {row.number}</strong>{" "}
                  {head.published?.version === row.number && <span className="tag">published</span>} by{" "}
                  {row.by}{" "}
                  <span className="dim small">
                    <ExactTime at={isoOf(row.at)} /> · contract version{" "}
                    {row.definition.baseRef.envelopeVersion}
                    {row.rolledBackTo && ` · the same as version ${row.rolledBackTo}`}
                  </span>
                  <details>
                    <summary>Definition</summary>
                    <JsonView label={row.hash} value={row.definition} />
                  </details>
                  {subject && head.published?.version !== row.number && (
                    <Act
                      label={`Roll back to version ${row.number}`}
                      ask={<p>A new version with this definition is published.</p>}
                      act={() => post("rollback", String(row.number))}
                      done={done}
                    />
                  )}
                </li>
              ))}
            </ul>
          )}
        </Loaded>
      )}
      {first > 1 && (
        <button type="button" onClick={() => setCount(count + 10)}>
          Earlier versions
        </button>
      )}
    </Card>
  );
}

type Simulation = {
  state: string;
  status: unknown;
  path: string[];
  asked: { node: string; verdict: string; people?: unknown; problem?: Problem }[];
  failure?: unknown;
  stuck?: string;
};

function Simulate({ type }: { type: string }) {
  const [result, setResult] = useState<Simulation | null>(null);
  const [error, setError] = useState<unknown>(null);
  const templates = useTemplates();
  const sample = templates.data?.find((one) => one.contract.entityType === type)?.samples[0];
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const text = (name: string) => String(form.get(name) ?? "").trim();
    try {
      for (const name of ["document", "verdicts"]) if (text(name) !== "") parseJson(text(name));
      const now = JSON.stringify(new Date().toISOString());
      const members = [`"document":${text("document")}`, `"requester":${JSON.stringify(text("requester"))}`];
      members.push(`"now":${now}`);
      if (text("verdicts") !== "") members.push(`"verdicts":${text("verdicts")}`);
      setError(null);
      const body = `{${members.join(",")}}`;
      setResult(await call<Simulation>(at("contracts", type, "simulate"), { method: "POST", body }));
    } catch (caught) {
      setResult(null);
      setError(caught);
    }
  };
  return (
    <div className="two">
      <Card title="Scenario">
        <form key={sample?.name} className="form" onSubmit={submit}>
          <label>
            Document <span className="dim">JSON</span>
            <textarea
              name="document"
              rows={8}
              spellCheck={false}
              required
              defaultValue={sample ? formatJson(sample.document) : "{}"}
            />
          </label>
          <label>
            Requester
            <input name="requester" defaultValue="requester" />
          </label>
          <label>
            Decisions{" "}
            <span className="dim">JSON: node to approved, rejected or abstained; approved without</span>
            <textarea name="verdicts" rows={3} spellCheck={false} placeholder="{}" />
          </label>
          <div>
            <button type="submit" className="primary">
              Simulate the draft
            </button>
          </div>
        </form>
      </Card>
      <Card title="Result">
        {error !== null && <Problems error={error} />}
        {!result && error === null && (
          <p className="dim">Nothing is written. The draft decides, or the published version.</p>
        )}
        {result && (
          <div role="status">
            <p>
              Ends in the state <strong>{result.state}</strong>
              {result.stuck && <span className="bad"> and is stuck: {result.stuck}</span>}
            </p>
            <ol className="tries">
              {result.path.map((node, index) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: a path can pass a node twice.
                <li key={index} className="mono wrap">
                  {node}
                </li>
              ))}
            </ol>
            {result.asked.length > 0 && <JsonView label="Asked" value={result.asked} />}
            {result.failure !== undefined && result.failure !== null && (
              <JsonView label="Failure" value={result.failure} />
            )}
          </div>
        )}
      </Card>
    </div>
  );
}

/** The problems of a definition, or another error. */
export function Problems({ error }: { error: unknown }) {
  const problems = problemsOf(error);
  if (problems.length === 0) return <Failed error={error} />;
  return (
    <ul className="problems" role="alert">
      {problems.map((one) => (
        <li key={`${one.code} ${one.pointer ?? ""} ${one.message}`}>
          <strong>{one.code}</strong> {one.message}
          {one.help && <div className="dim small">{one.help}</div>}
          {one.pointer && <div className="dim small mono wrap">{one.pointer}</div>}
        </li>
      ))}
    </ul>
  );
}

export function problemsOf(error: unknown): Problem[] {
  if (!(error instanceof ApiError)) return [];
  const details = error.details as { problems?: Problem[] } | undefined;
  return details?.problems ?? [];
}
