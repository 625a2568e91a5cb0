// Edits the draft of a definition: the slots, the graph of one slot between its locked entry and exit, its
// nodes and edges with their conditions. The draft is checked while it is edited.
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { at, call } from "../api/raw";
import { queries } from "../app";
import {
  type Contract,
  type Definition,
  type DefinitionHead,
  type FlowEdge,
  type FlowNode,
  type Patch,
  type Problem,
  useContract,
  windowName,
} from "../contracts";
import { keep, kept, textOf } from "../draft";
import type { Graph } from "../graph/model";
import { GraphView } from "../graph/view";
import { formatJson, parseJson } from "../json";
import { Act, Card, Failed, Loaded } from "../parts";
import { useSettled } from "../settled";
import { underline } from "../trial";
import { Problems, problemsOf, useTemplates } from "./definitions";
import { TryWith } from "./playground";

export type Template = {
  name: string;
  title: string;
  description: string;
  contract: Contract;
  definition: Definition;
  samples: { name: string; document: unknown }[];
};

// The nodes that a tenant may add, with a configuration to start from.
const palette: Record<string, unknown> = {
  approval: { approvers: { strategy: "role", role: "approver" } },
  condition: {},
  action: { mutation: { actionType: "name.of.action", payloadTemplate: {} } },
  notification: {
    channel: "in_app",
    to: { strategy: "role", role: "approver" },
    subject: "A document waits",
  },
  wait_timer: { for: "1 day" },
  wait_event: { eventKey: "paid:{{entity.id}}" },
  webhook_out: { url: "https://example.com/hook", payloadTemplate: {} },
  parallel_split: {},
  parallel_join: { mode: "all" },
  script: { writes: {} },
  rule: { rule: "name_of_table" },
};

export function SlotEditor({ type, head, slot }: { type: string; head: DefinitionHead; slot?: string }) {
  const contract = useContract(type);
  const published = head.published?.version;
  const start = useQuery({
    queryKey: ["lists", "definition-start", type, published],
    enabled: !head.draft && published !== undefined,
    queryFn: ({ signal }) =>
      call<{ definition: Definition }>(at("contracts", type, "versions", String(published)), { signal }),
  });
  return (
    <Loaded query={contract}>
      {(data) => {
        if (!head.draft && published !== undefined && !start.data)
          return <Loaded query={start}>{() => null}</Loaded>;
        const empty = { baseRef: { entityType: type, envelopeVersion: data.version }, slots: {} };
        const first = head.draft ?? start.data?.definition ?? empty;
        return <Kept contract={data} first={first} slot={slot} />;
      }}
    </Loaded>
  );
}

type EditorProps = { contract: Contract; first: Definition; slot?: string };

// Begins with the changes that this tab has not saved.
function Kept(props: EditorProps) {
  const type = props.contract.entityType;
  const [before, setBefore] = useState(() => kept<Definition>(type, sessionStorage));
  const [base, setBase] = useState(() => textOf(props.first));
  const [count, setCount] = useState(0);
  return (
    <>
      {before && (
        <div className="notice" role="status">
          <p>
            The editor continues with changes that were not saved.
            {before.base !== base && " Somebody has saved another draft since; saving replaces it."}
          </p>
          <Act
            label="Discard my changes"
            ask={<p>The draft is as the server has it.</p>}
            act={async () => {
              const now = textOf(props.first);
              keep(type, { base: now, text: now }, sessionStorage);
              setBase(now);
              setBefore(undefined);
              setCount(count + 1);
            }}
          />
        </div>
      )}
      <Editor
        key={count}
        {...props}
        base={base}
        begin={before?.definition ?? props.first}
        saved={() => setBefore(undefined)}
      />
    </>
  );
}

function Editor(props: EditorProps & { base: string; begin: Definition; saved: () => void }) {
  const { contract, slot } = props;
  const type = contract.entityType;
  const [draft, setDraft] = useState(props.begin);
  const [saved, setSaved] = useState(props.base);
  const templates = useTemplates();
  const chosen = contract.slots.find((one) => one.slotId === slot) ?? contract.slots[0];
  const text = textOf(draft);
  useUnsaved(type, saved, text);
  const settled = useSettled(text);
  const check = useQuery({
    queryKey: ["check", type, settled],
    retry: false,
    gcTime: 0,
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) =>
      call<{ hash: string; nodes: number }>(at("contracts", type, "check"), {
        signal,
        method: "POST",
        body: settled,
      }),
  });
  const problems = problemsOf(check.error);
  if (!chosen) return <p className="dim">The contract of this type has no slots.</p>;
  const patch = draft.slots[chosen.slotId];
  const set = (next: Patch | undefined) => {
    const slots = { ...draft.slots };
    if (next) slots[chosen.slotId] = next;
    else delete slots[chosen.slotId];
    setDraft({ ...draft, slots });
  };
  const fitting = (templates.data ?? []).filter((one) => one.definition.slots[chosen.slotId]);
  return (
    <div className="editor">
      <Card title="Slots">
        <ul className="inbox">
          {contract.slots.map((one) => (
            <li key={one.slotId}>
              <Link
                to="/definitions"
                search={{ type, part: "editor", slot: one.slotId }}
                aria-current={one.slotId === chosen.slotId || undefined}
              >
                <strong>{one.slotId}</strong>
                <span className="dim small">
                  {draft.slots[one.slotId] ? "your graph" : "the contract’s default"} ·{" "}
                  {windowName(one.defaultEditWindow)}
                </span>
              </Link>
            </li>
          ))}
        </ul>
        <div className="actions">
          <Act
            label={saved === text ? "The draft is saved" : "Save the draft"}
            act={async () => {
              await call(at("contracts", type, "draft"), { method: "PUT", body: text });
              setSaved(text);
              props.saved();
            }}
            done={() => queries.invalidateQueries({ queryKey: ["lists"] })}
          />
        </div>
        <p className="small" role="status">
          {check.error ? (
            <span className="bad">
              {problems.length > 0 ? `${problems.length} problems` : "The check failed"}
            </span>
          ) : check.data ? (
            <span className="good">The draft compiles to {check.data.nodes} nodes.</span>
          ) : (
            <span className="dim">Checking…</span>
          )}
        </p>
        {check.error && <Problems error={check.error} />}
      </Card>
      <div>
        <Card title={chosen.slotId}>
          <div className="chips">
            {Object.keys(palette).map((kind) => (
              <button
                key={kind}
                type="button"
                className="chip"
                onClick={() => set(added(chosen.slotId, patch, kind))}
              >
                + {kind.replace("_", " ")}
              </button>
            ))}
          </div>
          <div className="actions">
            {fitting.length > 0 && (
              <select
                aria-label="Start from a template"
                value=""
                onChange={(event) => {
                  const one = fitting.find((template) => template.name === event.target.value);
                  if (one) set(one.definition.slots[chosen.slotId]);
                }}
              >
                <option value="">Start from a template…</option>
                {fitting.map((one) => (
                  <option key={one.name} value={one.name}>
                    {one.title}
                  </option>
                ))}
              </select>
            )}
            {!patch && contract.defaults[chosen.slotId] && (
              <button type="button" onClick={() => set(contract.defaults[chosen.slotId])}>
                Copy the default
              </button>
            )}
            {patch && (
              <button type="button" className="danger" onClick={() => set(undefined)}>
                Use the default
              </button>
            )}
          </div>
          <GraphView
            graph={slotGraph(chosen.slotId, patch ?? contract.defaults[chosen.slotId] ?? none)}
            label={`The graph of ${chosen.slotId}`}
          />
        </Card>
        {patch && (
          <PatchForm
            key={chosen.slotId}
            type={type}
            slot={chosen.slotId}
            patch={patch}
            problems={problems}
            set={set}
          />
        )}
      </div>
    </div>
  );
}

const none: Patch = { nodes: [], edges: [] };

// The tab keeps the changes, and asks before it is closed with them.
function useUnsaved(type: string, base: string, text: string) {
  useEffect(() => keep(type, { base, text }, sessionStorage), [type, base, text]);
  const unsaved = base !== text;
  useEffect(() => {
    if (!unsaved) return;
    const ask = (event: BeforeUnloadEvent) => event.preventDefault();
    window.addEventListener("beforeunload", ask);
    return () => window.removeEventListener("beforeunload", ask);
  }, [unsaved]);
}

const ends = (slot: string) => [`sys:slot:${slot}:in`, `sys:slot:${slot}:out`];

function added(slot: string, patch: Patch | undefined, kind: string): Patch {
  const from = patch ?? none;
  const taken = new Set(from.nodes.map((node) => node.id));
  let number = 1;
  while (taken.has(`usr:${slot}:${kind}_${number}`)) number += 1;
  const id = `usr:${slot}:${kind}_${number}`;
  const node: FlowNode = { id, type: kind, config: palette[kind] };
  const last = from.nodes.at(-1);
  const edges = last ? [...from.edges, edgeOf(from.edges, last.id, id)] : from.edges;
  return { ...from, nodes: [...from.nodes, node], edges };
}

function edgeOf(edges: FlowEdge[], source: string, target: string): FlowEdge {
  const taken = new Set(edges.map((edge) => edge.id));
  let number = 1;
  while (taken.has(`e${number}`)) number += 1;
  return { id: `e${number}`, source, target, priority: 0 };
}

/** The graph of a patch, with the entry and the exit that the compiler connects. */
export function slotGraph(slot: string, patch: Patch): Graph {
  const [entry, exit] = ends(slot);
  const edges = (patch.edges ?? []).map((edge) => ({
    from: edge.source,
    to: edge.target,
    label: edge.label ?? edge.condition,
  }));
  const nodes = patch.nodes ?? [];
  // As the compiler does it: what has no edge to its node begins the slot, what has none from it ends the slot.
  const given = [...edges];
  for (const node of nodes) {
    if (!given.some((edge) => edge.to === node.id))
      edges.push({ from: entry, to: node.id, label: undefined });
    if (!given.some((edge) => edge.from === node.id))
      edges.push({ from: node.id, to: exit, label: undefined });
  }
  if (nodes.length === 0) edges.push({ from: entry, to: exit, label: undefined });
  const locked = (id: string, label: string) => ({
    id,
    label,
    hint: "locked",
    state: "completed",
    count: 1,
  });
  return {
    nodes: [
      locked(entry, "entry"),
      ...nodes.map((node) => ({
        id: node.id,
        label: node.label ?? node.id.split(":").slice(-1)[0],
        hint: node.type,
        state: "waiting",
        count: 1,
      })),
      locked(exit, "exit"),
    ],
    edges: withoutCycles(edges),
    cut: false,
  };
}

// A draft may have a cycle, which the check reports; the layout cannot draw it.
function withoutCycles<E extends { from: string; to: string }>(edges: E[]): E[] {
  const kept: E[] = [];
  for (const edge of edges) if (edge.from !== edge.to && !reaches(kept, edge.to, edge.from)) kept.push(edge);
  return kept;
}

function reaches(edges: { from: string; to: string }[], from: string, to: string): boolean {
  const seen = new Set([from]);
  for (const node of seen) {
    if (node === to) return true;
    for (const edge of edges) if (edge.from === node) seen.add(edge.to);
  }
  return false;
}

type FormProps = {
  type: string;
  slot: string;
  patch: Patch;
  problems: Problem[];
  set: (patch: Patch) => void;
};

function PatchForm({ type, slot, patch, problems, set }: FormProps) {
  const at = (kind: string, index: number) =>
    problems.filter((one) => one.pointer?.startsWith(`/slots/${slot}/${kind}/${index}`));
  const setNode = (index: number, node: FlowNode) =>
    set({ ...patch, nodes: patch.nodes.map((one, position) => (position === index ? node : one)) });
  const removeNode = (id: string) =>
    set({
      ...patch,
      nodes: patch.nodes.filter((node) => node.id !== id),
      edges: patch.edges.filter((edge) => edge.source !== id && edge.target !== id),
    });
  const setEdge = (index: number, edge: FlowEdge) =>
    set({ ...patch, edges: patch.edges.map((one, position) => (position === index ? edge : one)) });
  const [entry, exit] = ends(slot);
  const ids = patch.nodes.map((node) => node.id);
  return (
    <>
      <Card title="Nodes">
        {patch.nodes.length === 0 && <p className="dim">Add a node from the palette above.</p>}
        {patch.nodes.map((node, index) => (
          <fieldset key={node.id} className="flow-node">
            <legend className="mono">
              {node.id} <span className="dim">{node.type}</span>
            </legend>
            <label>
              Label{" "}
              <input
                value={node.label ?? ""}
                onChange={(event) => setNode(index, { ...node, label: event.target.value || undefined })}
              />
            </label>
            <Config node={node} set={(config) => setNode(index, { ...node, config })} />
            <button type="button" className="danger" onClick={() => removeNode(node.id)}>
              Remove
            </button>
            <Beside problems={at("nodes", index)} />
          </fieldset>
        ))}
      </Card>
      <Card title="Edges">
        {patch.edges.map((edge, index) => (
          <fieldset key={edge.id} className="flow-node">
            <legend className="mono">{edge.id}</legend>
            <div className="fields">
              <End
                label="From"
                value={edge.source}
                ids={[entry, ...ids]}
                set={(source) => setEdge(index, { ...edge, source })}
              />
              <End
                label="To"
                value={edge.target}
                ids={[...ids, exit]}
                set={(target) => setEdge(index, { ...edge, target })}
              />
              <input
                aria-label={`Outcome or label of ${edge.id}`}
                placeholder="outcome or label"
                value={edge.label ?? ""}
                onChange={(event) => setEdge(index, { ...edge, label: event.target.value || undefined })}
              />
              <input
                aria-label={`Priority of ${edge.id}`}
                type="number"
                value={edge.priority}
                onChange={(event) => setEdge(index, { ...edge, priority: Number(event.target.value) })}
              />
            </div>
            <label className="condition">
              Condition{" "}
              <input
                className="mono"
                placeholder="entity.total > 1000"
                value={edge.condition ?? ""}
                aria-invalid={at("edges", index).length > 0 || undefined}
                onChange={(event) => setEdge(index, { ...edge, condition: event.target.value || undefined })}
              />
            </label>
            {edge.condition && <TryCondition type={type} edge={edge.id} condition={edge.condition} />}
            <button
              type="button"
              className="danger"
              onClick={() =>
                set({ ...patch, edges: patch.edges.filter((_, position) => position !== index) })
              }
            >
              Remove
            </button>
            <Beside problems={at("edges", index)} />
          </fieldset>
        ))}
        {ids.length > 0 && (
          <button
            type="button"
            onClick={() =>
              set({ ...patch, edges: [...patch.edges, edgeOf(patch.edges, ids[0], ids.at(-1) ?? exit)] })
            }
          >
            Add an edge
          </button>
        )}
      </Card>
    </>
  );
}

// The trial is made only while it is open.
function TryCondition(props: { type: string; edge: string; condition: string }) {
  const [open, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        Try the condition<span className="visually-hidden"> of {props.edge}</span>
      </summary>
      {open && <TryWith type={props.type} expression={props.condition} condition />}
    </details>
  );
}

function End(props: { label: string; value: string; ids: string[]; set: (id: string) => void }) {
  return (
    <select aria-label={props.label} value={props.value} onChange={(event) => props.set(event.target.value)}>
      {props.ids.map((id) => (
        <option key={id} value={id}>
          {id.split(":").slice(-1)[0]}
        </option>
      ))}
    </select>
  );
}

// The text is kept as typed; only JSON reaches the draft.
function Config({ node, set }: { node: FlowNode; set: (config: unknown) => void }) {
  const [text, setText] = useState(() => formatJson(node.config));
  const [error, setError] = useState<unknown>(null);
  return (
    <label>
      Configuration <span className="dim">JSON</span>
      <textarea
        rows={Math.min(10, text.split("\n").length + 1)}
        spellCheck={false}
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          try {
            set(parseJson(event.target.value));
            setError(null);
          } catch (caught) {
            setError(caught);
          }
        }}
      />
      {error !== null && <Failed error={error} />}
    </label>
  );
}

function Beside({ problems }: { problems: Problem[] }) {
  if (problems.length === 0) return null;
  return (
    <ul className="problems">
      {problems.map((one) => (
        <li key={`${one.code} ${one.message}`}>
          <strong>{one.code}</strong> {one.message}
          {one.expression && one.span && (
            <pre>
              {one.expression}
              {"\n"}
              {underline(one.expression, one.span)}
            </pre>
          )}
          {one.help && <div className="dim small">{one.help}</div>}
        </li>
      ))}
    </ul>
  );
}
