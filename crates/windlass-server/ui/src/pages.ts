// The views of the menu, the palette and the keys.
import { useMe } from "./app";

const all = [
  { to: "/", label: "Overview", key: "o" },
  { to: "/runs", label: "Runs", key: "r" },
  { to: "/inbox", label: "Inbox", key: "i" },
  { to: "/documents", label: "Documents", key: "t" },
  { to: "/batches", label: "Batches & spend", key: "a" },
  { to: "/definitions", label: "Definitions", key: "f" },
  { to: "/health", label: "Contracts health", key: "b" },
  { to: "/workers", label: "Workers & queues", key: "w" },
  { to: "/dead-letters", label: "Dead letters", key: "d" },
  { to: "/schedules", label: "Schedules", key: "s" },
  { to: "/webhooks", label: "Webhooks", key: "h" },
  { to: "/records", label: "Records", key: "c" },
  { to: "/settings", label: "Settings", key: "," },
] as const;

const ofContracts = ["/documents", "/definitions", "/health"];

/** The views, without those of models that the server does not have. Their addresses still lead there. */
export function usePages() {
  const { routeSets } = useMe();
  const needs = (page: string) =>
    ofContracts.includes(page) ? "contracts" : page === "/batches" ? "llm" : undefined;
  return all.filter(({ to }) => {
    const set = needs(to);
    return set === undefined || routeSets.includes(set);
  });
}
