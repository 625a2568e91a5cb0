// What the address of a run says beside its name: the tab, the generation, the open step, the filters.
import { useNavigate, useParams, useSearch } from "@tanstack/react-router";

export const tabs = ["timeline", "graph", "agent", "ledger", "data", "logs"] as const;
export type Tab = (typeof tabs)[number];
export const timelineFilters = ["all", "failed", "waiting", "slow"] as const;
export type TimelineFilter = (typeof timelineFilters)[number];
export const logLevels = ["debug", "info", "warn", "error"] as const;
export type LogLevel = (typeof logLevels)[number];

export type RunSearch = {
  tab?: Tab;
  generation?: number;
  step?: string;
  /** Which steps the timeline shows. */
  show?: Exclude<TimelineFilter, "all">;
  /** A part of the event types that the ledger shows. */
  event?: string;
  /** `root`: the ledger of the whole tree. */
  scope?: "root";
  level?: Exclude<LogLevel, "debug">;
  /** A part of the log lines that are shown. */
  find?: string;
  /** The step whose log lines are shown. */
  lines?: string;
};

export function readRunSearch(search: Record<string, unknown>): RunSearch {
  const text = (value: unknown) => {
    // The router reads a text that is a number as one.
    const words = typeof value === "number" ? String(value) : value;
    return typeof words === "string" && words !== "" ? words : undefined;
  };
  const one = <T extends string>(words: readonly T[], value: unknown): T | undefined =>
    words.find((word) => word === value);
  return {
    tab: one(tabs, search.tab),
    generation: typeof search.generation === "number" ? search.generation : undefined,
    step: text(search.step),
    show: one(["failed", "waiting", "slow"], search.show),
    event: text(search.event),
    scope: one(["root"], search.scope),
    level: one(["info", "warn", "error"], search.level),
    find: text(search.find),
    lines: text(search.lines),
  };
}

/** The search of the address of a run, and how to change it in place. */
export function useRunSearch(): [RunSearch, (change: RunSearch) => void] {
  const search = useSearch({ from: "/runs/$workflow/$id" });
  const params = useParams({ from: "/runs/$workflow/$id" });
  const navigate = useNavigate();
  const set = (change: RunSearch) =>
    void navigate({ to: "/runs/$workflow/$id", params, search: { ...search, ...change }, replace: true });
  return [search, set];
}
