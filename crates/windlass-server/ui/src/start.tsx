// Starting a run: with one click, or with an id and an input.
import { useNavigate } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { api, ok } from "./api/client";
import { parseJson } from "./json";
import { Dialog, Failed } from "./parts";

export function StartSample({ workflow }: { workflow: string }) {
  const navigate = useNavigate();
  const [error, setError] = useState<unknown>(null);
  const start = async () => {
    try {
      const path = { workflowName: workflow };
      const run = await ok(api.POST("/workflows/{workflowName}/instances", { params: { path }, body: {} }));
      navigate({ to: "/runs/$workflow/$id", params: { workflow, id: run.id }, search: {} });
    } catch (caught) {
      setError(caught);
    }
  };
  return (
    <>
      <button type="button" className="primary" onClick={start}>
        Start “{workflow}”
      </button>
      {error !== null && <Failed error={error} />}
    </>
  );
}

export function NewRun({ workflows, close }: { workflows: string[]; close: () => void }) {
  const navigate = useNavigate();
  const [error, setError] = useState<unknown>(null);
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const [workflow, id, params] = ["workflow", "id", "params"].map((name) => String(form.get(name) ?? ""));
    try {
      // Checked here and sent as it was typed: the server keeps the digits of numbers.
      if (params.trim() !== "") parseJson(params);
      const head = id === "" ? "" : `"id":${JSON.stringify(id)},`;
      const body = `{${head}"params":${params.trim() === "" ? "null" : params}}`;
      const path = { workflowName: workflow };
      const run = await ok(
        api.POST("/workflows/{workflowName}/instances", {
          params: { path },
          body: {},
          bodySerializer: () => body,
          headers: { "content-type": "application/json" },
        }),
      );
      close();
      navigate({ to: "/runs/$workflow/$id", params: { workflow, id: run.id }, search: {} });
    } catch (caught) {
      setError(caught);
    }
  };
  return (
    <Dialog title="New run" close={close}>
      <form className="dialog-body form" onSubmit={submit}>
        <label>
          Workflow
          <select name="workflow" required>
            {workflows.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <label>
          Id <span className="dim">empty for a new UUID</span>
          <input name="id" maxLength={100} />
        </label>
        <label>
          Input <span className="dim">JSON</span>
          <textarea name="params" rows={6} spellCheck={false} placeholder="null" />
        </label>
        {error !== null && <Failed error={error} />}
        <div className="dialog-foot">
          <button type="submit" className="primary">
            Start
          </button>
        </div>
      </form>
    </Dialog>
  );
}
