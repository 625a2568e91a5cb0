// What all views share: the caller, the clock, the time zone, the theme and the live stream.
import { QueryClient } from "@tanstack/react-query";
import { createContext, useContext, useEffect, useRef, useSyncExternalStore } from "react";
import type { Schemas } from "./api/client";
import type { Zone } from "./format";
import { Live } from "./live";
import type { Pill } from "./stream";

export const queries = new QueryClient({
  defaultOptions: {
    queries: { staleTime: 1000, retry: 1, refetchOnWindowFocus: true, refetchIntervalInBackground: false },
  },
});
export const live = new Live(queries);

export type Me = Schemas["Whoami"];
export const MeContext = createContext<Me | null>(null);

export function useMe(): Me {
  const me = useContext(MeContext);
  if (!me) throw new Error("a view outside the signed-in page");
  return me;
}

/** Whether the caller has a scope; acts that it may not do are not shown. */
export function useMay(): (scope: Me["scopes"][number]) => boolean {
  const { scopes } = useMe();
  return (scope) => scopes.includes("admin") || scopes.includes(scope);
}

export function usePill(): Pill {
  return useSyncExternalStore(live.subscribe, () => live.state);
}

/**
 * Reads these runs again whenever they change, while the view is open. With the number of events that the view has
 * read, a change that comes before the stream is open counts too.
 */
export function useFollow(runKeys: string[], read?: number) {
  const key = runKeys.join(",");
  const first = useRef(read);
  first.current = read;
  useEffect(() => {
    const owner = {};
    const known = first.current;
    const runs = key === "" ? [] : key.split(",");
    live.follow(owner, known === undefined ? runs : runs.map((run) => `${run}@${known}`));
    return () => live.follow(owner, []);
  }, [key]);
}

// Settings of this browser.
const listeners = new Set<() => void>();

function read(name: string): string | null {
  try {
    return localStorage.getItem(`windlass.${name}`);
  } catch {
    return null;
  }
}

export function useSetting(name: string, fallback: string): [string, (value: string) => void] {
  const value = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    () => read(name) ?? fallback,
  );
  const set = (next: string) => {
    try {
      localStorage.setItem(`windlass.${name}`, next);
    } catch {
      // Without storage the setting lasts until the page is closed.
    }
    for (const listener of listeners) listener();
  };
  return [value, set];
}

export function useZone(): [Zone, (zone: Zone) => void] {
  const [zone, set] = useSetting("zone", "local");
  return [zone === "utc" ? "utc" : "local", set];
}

// One clock for all ages on the page.
let now = Date.now();
const tickers = new Set<() => void>();
setInterval(() => {
  if (document.hidden) return;
  now = Date.now();
  for (const ticker of tickers) ticker();
}, 1000);

const tick = (ticker: () => void) => {
  tickers.add(ticker);
  return () => void tickers.delete(ticker);
};
const rest = () => () => {};

/** The time, each second. A view of what has ended does not need it, and is not drawn again for it. */
export function useNow(isRunning = true): number {
  return useSyncExternalStore(isRunning ? tick : rest, () => (isRunning ? now : 0));
}
