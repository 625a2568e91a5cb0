import { QueryClientProvider } from "@tanstack/react-query";
import { createRootRoute, createRoute, createRouter, RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { basePath } from "./api/client";
import { queries } from "./app";
import { NotFound, Shell } from "./shell";
import { spendKeys } from "./spend";
import "./style.css";
import "./views.css";
import { Batches, type BatchesSearch, batchStates } from "./views/batches";
import { DeadLetters } from "./views/deadletters";
import { Definitions, type DefinitionsSearch, definitionParts } from "./views/definitions";
import { Documents, type DocumentsSearch } from "./views/documents";
import { Health } from "./views/health";
import { Inbox, type InboxSearch, requestStates } from "./views/inbox";
import { Overview, type OverviewSearch } from "./views/overview";
import { Records } from "./views/records";
import { RunView } from "./views/run";
import { type RunSearch, readRunSearch } from "./views/run-search";
import { Runs, type RunsSearch, readSearch } from "./views/runs";
import { Schedules } from "./views/schedules";
import { Settings } from "./views/settings";
import { Webhooks } from "./views/webhooks";
import { Workers } from "./views/workers";

const root = createRootRoute({ component: Shell, notFoundComponent: NotFound });
const page = <P extends string>(path: P, component: () => React.ReactNode) =>
  createRoute({ getParentRoute: () => root, path, component });

const runs = createRoute({
  getParentRoute: () => root,
  path: "runs",
  component: Runs,
  validateSearch: (search): RunsSearch => readSearch(search),
});

const run = createRoute({
  getParentRoute: () => root,
  path: "runs/$workflow/$id",
  component: RunView,
  validateSearch: (search: Record<string, unknown>): RunSearch => readRunSearch(search),
});

export type RecordsSearch = { collection?: string; term?: string; id?: string };
const text = (value: unknown) => (value === undefined || value === "" ? undefined : String(value));
const records = createRoute({
  getParentRoute: () => root,
  path: "records",
  component: Records,
  validateSearch: (search: Record<string, unknown>): RecordsSearch => ({
    collection: text(search.collection),
    term: text(search.term),
    id: text(search.id),
  }),
});

const inbox = createRoute({
  getParentRoute: () => root,
  path: "inbox",
  component: Inbox,
  validateSearch: (search: Record<string, unknown>): InboxSearch => ({
    of: text(search.of),
    status: requestStates.find((state) => state === search.status),
    id: text(search.id),
  }),
});

const documents = createRoute({
  getParentRoute: () => root,
  path: "documents",
  component: Documents,
  validateSearch: (search: Record<string, unknown>): DocumentsSearch => ({
    type: text(search.type),
    state: text(search.state),
    id: text(search.id),
  }),
});

const definitions = createRoute({
  getParentRoute: () => root,
  path: "definitions",
  component: Definitions,
  validateSearch: (search: Record<string, unknown>): DefinitionsSearch => ({
    type: text(search.type),
    part: definitionParts.find((part) => part === search.part),
    slot: text(search.slot),
  }),
});

const batches = createRoute({
  getParentRoute: () => root,
  path: "batches",
  component: Batches,
  validateSearch: (search: Record<string, unknown>): BatchesSearch => ({
    status: batchStates.find((state) => state === search.status),
    by: spendKeys.find((key) => key === search.by),
    days: typeof search.days === "number" && search.days >= 1 && search.days <= 366 ? search.days : undefined,
    root: text(search.root),
  }),
});

const deadLetters = createRoute({
  getParentRoute: () => root,
  path: "dead-letters",
  component: DeadLetters,
  validateSearch: (search: Record<string, unknown>): { run?: string } => ({ run: text(search.run) }),
});

const overview = createRoute({
  getParentRoute: () => root,
  path: "/",
  component: Overview,
  validateSearch: (search: Record<string, unknown>): OverviewSearch => ({
    workflow: text(search.workflow),
    span: search.span === "day" ? "day" : undefined,
  }),
});

const routeTree = root.addChildren([
  overview,
  runs,
  run,
  inbox,
  batches,
  documents,
  definitions,
  page("health", Health),
  page("workers", Workers),
  deadLetters,
  page("schedules", Schedules),
  page("webhooks", Webhooks),
  records,
  page("settings", Settings),
]);

export const router = createRouter({ routeTree, basepath: basePath || "/", defaultPreload: "intent" });

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}

const element = document.getElementById("root");
if (element) {
  createRoot(element).render(
    <StrictMode>
      <QueryClientProvider client={queries}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </StrictMode>,
  );
}
