import { type FormEvent, useState } from "react";
import { api, ok } from "./api/client";
import { queries } from "./app";
import { parseJson } from "./json";
import { Dialog, Failed } from "./parts";

export function SendEvent({ workflow, id }: { workflow: string; id: string }) {
  const [open, setOpen] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const [type, payload] = ["type", "payload"].map((name) => String(form.get(name) ?? ""));
    try {
      if (payload.trim() !== "") parseJson(payload);
      const body = `{"type":${JSON.stringify(type)},"payload":${payload.trim() === "" ? "null" : payload}}`;
      const path = { workflowName: workflow, instanceId: id };
      await ok(
        api.POST("/workflows/{workflowName}/instances/{instanceId}/events", {
          params: { path },
          body: { type },
          bodySerializer: () => body,
          headers: { "content-type": "application/json" },
        }),
      );
      setOpen(false);
      queries.invalidateQueries();
    } catch (caught) {
      setError(caught);
    }
  };
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>
        Send event
      </button>
      {open && (
        <Dialog title={`Send an event to ${workflow}/${id}`} close={() => setOpen(false)}>
          <form className="dialog-body form" onSubmit={submit}>
            <label>
              Type
              <input name="type" required />
            </label>
            <label>
              Payload <span className="dim">JSON</span>
              <textarea name="payload" rows={5} spellCheck={false} placeholder="null" />
            </label>
            {error !== null && <Failed error={error} />}
            <div className="dialog-foot">
              <button type="submit" className="primary">
                Send
              </button>
            </div>
          </form>
        </Dialog>
      )}
    </>
  );
}
