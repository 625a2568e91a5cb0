// ⌘K: go to a view, a workflow or a run.
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useDeferredValue, useState } from "react";
import { api, ok } from "./api/client";
import { Dialog, Status } from "./parts";
import { pages } from "./shell";

type Hit = { id: string; label: string; hint: string; status?: string; go: () => void };

export function Palette({ close }: { close: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const navigate = useNavigate();
  const asked = useDeferredValue(text.trim());
  const workflows = useQuery({ queryKey: ["lists", "workflows"], queryFn: () => ok(api.GET("/workflows")) });
  const runs = useQuery({
    queryKey: ["lists", "palette", asked],
    enabled: asked.length > 0,
    queryFn: () =>
      ok(api.GET("/runs", { params: { query: { idPrefix: asked.split("/").pop(), pageSize: 8 } } })),
  });
  const low = text.trim().toLowerCase();
  const hits: Hit[] = [
    ...pages
      .filter((page) => page.label.toLowerCase().includes(low))
      .map((page) => ({
        id: page.to,
        label: page.label,
        hint: "view",
        go: () => navigate({ to: page.to }),
      })),
    ...(workflows.data?.workflows ?? [])
      .filter((workflow) => low !== "" && workflow.name.toLowerCase().includes(low))
      .slice(0, 6)
      .map((workflow) => ({
        id: `workflow ${workflow.name}`,
        label: workflow.name,
        hint: "workflow",
        go: () => navigate({ to: "/runs", search: { workflow: workflow.name } }),
      })),
    ...(asked === "" ? [] : (runs.data?.runs ?? [])).map((run) => ({
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
  ];
  const chosen = Math.min(at, hits.length - 1);
  const take = (hit: Hit | undefined) => {
    if (!hit) return;
    close();
    hit.go();
  };
  return (
    <Dialog title="Go to" close={close}>
      <input
        role="combobox"
        aria-expanded="true"
        aria-controls="hits"
        aria-label="View, workflow, or the beginning of a run's id"
        aria-activedescendant={hits[chosen] ? `hit-${chosen}` : undefined}
        placeholder="View, workflow, or the beginning of a run's id"
        value={text}
        data-autofocus=""
        onChange={(event) => {
          setText(event.target.value);
          setAt(0);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, hits.length - 1));
          else if (event.key === "ArrowUp") setAt(Math.max(chosen - 1, 0));
          else if (event.key === "Enter") take(hits[chosen]);
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
        {hits.length === 0 && <p className="dim">Nothing begins with this.</p>}
      </div>
    </Dialog>
  );
}
