// ⌘K: go to a view, a workflow or a run.
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useDeferredValue, useEffect, useState } from "react";
import { api, ok, type Schemas } from "./api/client";
import { usePages } from "./pages";
import { Dialog, Status } from "./parts";

type Hit = { id: string; label: string; hint: string; status?: string; go: () => void };

export function Palette({ close }: { close: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const navigate = useNavigate();
  const pages = usePages();
  const asked = useDeferredValue(text.trim());
  const found = useQuery({
    queryKey: ["lists", "palette", asked],
    enabled: asked.length > 0,
    queryFn: ({ signal }) =>
      ok(api.GET("/search", { signal, params: { query: { q: asked.slice(0, 400) } } })),
  });
  const hit = asked === "" ? undefined : found.data;
  const low = text.trim().toLowerCase();
  const eventHit = (event: Schemas["EventHit"]): Hit => ({
    id: "event",
    label: `${event.type} of ${event.workflowName}/${event.id}`,
    hint: `event of generation ${event.runNumber}`,
    go: () =>
      navigate({
        to: "/runs/$workflow/$id",
        params: { workflow: event.workflowName, id: event.id },
        search: { tab: "ledger", generation: event.runNumber },
      }),
  });
  const hits: Hit[] = [
    ...pages
      .filter((page) => page.label.toLowerCase().includes(low))
      .map((page) => ({
        id: page.to,
        label: page.label,
        hint: "view",
        go: () => navigate({ to: page.to }),
      })),
    ...(hit?.workflows ?? []).map((name) => ({
      id: `workflow ${name}`,
      label: name,
      hint: "workflow",
      go: () => navigate({ to: "/runs", search: { workflow: name } }),
    })),
    ...(hit?.runs ?? []).map((run) => ({
      id: run.runKey,
      label: `${run.workflowName}/${run.id}`,
      hint: "run",
      status: run.details.status,
      go: () =>
        navigate({
          to: "/runs/$workflow/$id",
          params: { workflow: run.workflowName, id: run.id },
          search: {},
        }),
    })),
    ...(hit?.schedules ?? []).map((name) => ({
      id: `schedule ${name}`,
      label: name,
      hint: "schedule",
      go: () => navigate({ to: "/schedules" }),
    })),
    ...(hit?.event ? [eventHit(hit.event)] : []),
  ];
  const chosen = Math.min(at, hits.length - 1);
  // Enter that is pressed before the answer takes the first hit of the answer, and not one of an older text.
  const isReady = text.trim() === asked && (asked === "" || !found.isPending);
  const [entered, setEntered] = useState(false);
  const take = (hit: Hit | undefined) => {
    if (!hit) return;
    close();
    hit.go();
  };
  const first = isReady && entered ? hits[0] : undefined;
  useEffect(() => {
    if (!first) return;
    close();
    first.go();
  }, [first, close]);
  return (
    <Dialog title="Go to" close={close}>
      <input
        role="combobox"
        aria-expanded="true"
        aria-controls="hits"
        aria-label="View, workflow, schedule, run key, or the beginning of a run's id"
        aria-activedescendant={hits[chosen] ? `hit-${chosen}` : undefined}
        placeholder="View, workflow, schedule, run key, or the beginning of a run's id"
        value={text}
        data-autofocus=""
        onChange={(event) => {
          setText(event.target.value);
          setAt(0);
          setEntered(false);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, hits.length - 1));
          else if (event.key === "ArrowUp") setAt(Math.max(chosen - 1, 0));
          else if (event.key === "Enter") isReady ? take(hits[chosen]) : setEntered(true);
          else return;
          event.preventDefault();
        }}
      />
      <div id="hits" role="listbox" aria-label="Results" className="hits">
        {hits.map((hit, index) => (
          <div
            key={hit.id}
            id={`hit-${index}`}
            role="option"
            tabIndex={-1}
            aria-selected={index === chosen}
            onMouseDown={() => take(hit)}
          >
            <span>{hit.label}</span>
            {hit.status ? <Status status={hit.status} /> : <span className="dim">{hit.hint}</span>}
          </div>
        ))}
        {hits.length === 0 && isReady && <p className="dim">Nothing has this name.</p>}
      </div>
    </Dialog>
  );
}
