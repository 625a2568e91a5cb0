// The routes of documents and definitions. A program mounts them; the OpenAPI document has no types for them.
import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { at, call } from "./api/raw";
import { useMe } from "./app";
import { compactJson } from "./json";
import { Empty, Page } from "./parts";

/** Microseconds since 1970, as the routes of documents have times. */
export type Micros = number;

export function isoOf(at: Micros): string {
  return new Date(Number(at) / 1000).toISOString();
}

export type TypeHead = { entityType: string; version: number; hash: string; archived?: boolean };
export type NodeType = string;
export type FlowNode = { id: string; type: NodeType; label?: string; editWindow?: unknown; config: unknown };
export type FlowEdge = {
  id: string;
  source: string;
  target: string;
  label?: string;
  condition?: string;
  priority: number;
  return?: boolean;
  provenance?: string;
};
export type Patch = {
  nodes: FlowNode[];
  edges: FlowEdge[];
  entryEdgeMode?: string;
  exitEdgeMode?: string;
  editWindowOverride?: unknown;
};
export type Definition = {
  baseRef: { entityType: string; envelopeVersion: number };
  slots: Record<string, Patch>;
  rules?: Record<string, unknown>;
};
export type Slot = {
  slotId: string;
  entry: string;
  exit: string;
  defaultEditWindow: unknown;
  stableRegion?: boolean;
};
export type Contract = {
  entityType: string;
  version: number;
  states: { name: string; editWindow: unknown; final?: boolean }[];
  gates: { name: string }[];
  slots: Slot[];
  defaults: Record<string, Patch>;
  documentActions?: string[];
};
export type Compiled = {
  entityType: string;
  envelopeVersion: number;
  hash: string;
  nodes: Record<string, FlowNode>;
  edgesById: Record<string, FlowEdge>;
  slotMap: Record<string, string>;
  patchOrigins: Record<string, string>;
};
export type PublishedRef = { version: number; hash: string; envelopeVersion: number };
export type DefinitionHead = {
  draft?: Definition | null;
  published?: PublishedRef | null;
  lastVersion: number;
};
export type Note = { who: string; what: string; when: Micros; why?: string | null };
export type Document = {
  revision: number;
  type: string;
  id: string;
  version: number;
  content: unknown;
  digest: string;
  state: string;
  editWindow: unknown;
  envelopeVersion: number;
  requester: string;
  editors: string[];
  gates?: string[];
  pending?: { gate: string; by: { id: string }; at: Micros }[];
  amendedFrom?: { id: string; version: number } | null;
  note: Note;
  createdAt: Micros;
  updatedAt: Micros;
};
export type Position = {
  run: string;
  generation: number;
  runStatus: string;
  status: string;
  state: string;
  cycle: number;
  tokens: { tokenId: string; state: string; node: string; cycle: number }[];
};
export type Problem = {
  code: string;
  message: string;
  help?: string;
  pointer?: string;
  expression?: string;
  span?: { start: number; end: number };
};

/** The name of an edit window, which is a word or an object. */
export function windowName(window: unknown): string {
  if (typeof window === "string") return window;
  return compactJson(window);
}

export function useTypes() {
  const { routeSets } = useMe();
  return useQuery({
    queryKey: ["lists", "types"],
    enabled: routeSets.includes("contracts"),
    retry: false,
    queryFn: ({ signal }) => call<{ types: TypeHead[] }>("/contracts/types", { signal }),
  });
}

export function useContract(type: string) {
  return useQuery({
    queryKey: ["lists", "contract", type],
    retry: false,
    queryFn: ({ signal }) =>
      call<{ contract: Contract } | Contract>(at("contracts", "types", type), { signal }),
    select: (found): Contract => ("contract" in found ? found.contract : found),
  });
}

export function useCompiled(type: string) {
  const { routeSets } = useMe();
  return useQuery({
    queryKey: ["lists", "effective", type],
    enabled: routeSets.includes("contracts"),
    retry: false,
    queryFn: ({ signal }) => call<Compiled>(at("contracts", type, "effective"), { signal }),
  });
}

/** The view of a server with documents, or how to add them. */
export function WithContracts({ title, children }: { title: string; children: ReactNode }) {
  const { routeSets } = useMe();
  if (routeSets.includes("contracts")) return <Page title={title}>{children}</Page>;
  return (
    <Page title={title}>
      <Empty title="This server has no documents">
        <p>
          A program that serves documents opens <code>Contracts::builder().open(engine.core())</code> and adds{" "}
          <code>windlass_server::contracts::routes(&amp;contracts)</code> to <code>Options::routes</code>.
        </p>
      </Empty>
    </Page>
  );
}

export function NoTypes() {
  return (
    <Empty title="No document type yet">
      <p>
        An operator publishes a lifecycle contract with <code>POST /api/contracts/types</code>. The view
        “Definitions” starts one from a template.
      </p>
    </Empty>
  );
}
