// Creates or changes a schedule. The next firings are shown while the timing is typed.
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useDeferredValue, useState } from "react";
import { api, ok, type Schemas } from "../api/client";
import { compactJson, parseJson } from "../json";
import { Dialog, ExactTime, Failed } from "../parts";

type Schedule = Schemas["ScheduleView"];
type Props = { schedule?: Schedule; close: () => void; done: () => void };

export function EditSchedule({ schedule, close, done }: Props) {
  const [cron, setCron] = useState(schedule?.cron ?? (schedule ? "" : "0 3 * * *"));
  const [zone, setZone] = useState(schedule?.timezone ?? "UTC");
  const [seconds, setSeconds] = useState(schedule?.everyMs ? String(Number(schedule.everyMs) / 1000) : "");
  const [error, setError] = useState<unknown>(null);
  const everyMs = seconds === "" ? undefined : Math.round(Number(seconds) * 1000);
  const timing = everyMs === undefined ? { cron, timezone: zone } : { everyMs };
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const text = (name: string) => String(form.get(name) ?? "");
    const input = text("params").trim() === "" ? "null" : text("params");
    try {
      parseJson(input);
      // The labels and the policy for missed firings stay as they are.
      const rest = {
        ...timing,
        workflow: text("workflow"),
        overlap: text("overlap") as Schemas["OverlapWord"],
        missed: text("missed") as Schemas["MissedWord"],
        labels: schedule?.labels ?? {},
      };
      await ok(
        api.PUT("/schedules/{name}", {
          params: { path: { name: schedule?.name ?? text("name") } },
          body: rest,
          // Sent as it was typed: the server keeps the digits of numbers.
          bodySerializer: (body) => `${JSON.stringify(body).slice(0, -1)},"params":${input}}`,
          headers: { "content-type": "application/json" },
        }),
      );
      close();
      done();
    } catch (caught) {
      setError(caught);
    }
  };
  return (
    <Dialog title={schedule ? `Edit the schedule “${schedule.name}”` : "New schedule"} close={close}>
      <form className="dialog-body form" onSubmit={submit}>
        {!schedule && (
          <label>
            Name
            <input name="name" required maxLength={100} />
          </label>
        )}
        <label>
          Workflow
          <input name="workflow" required defaultValue={schedule?.workflow} />
        </label>
        <label>
          Cron expression <span className="dim">five fields, or six with seconds first</span>
          <input
            name="cron"
            className="mono"
            value={cron}
            disabled={seconds !== ""}
            onChange={(event) => setCron(event.target.value)}
          />
        </label>
        <label>
          Time zone
          <input
            name="timezone"
            value={zone}
            disabled={seconds !== ""}
            onChange={(event) => setZone(event.target.value)}
          />
        </label>
        <label>
          Or every <span className="dim">seconds</span>
          <input
            name="seconds"
            type="number"
            min="1"
            value={seconds}
            onChange={(event) => setSeconds(event.target.value)}
          />
        </label>
        <Preview timing={timing} />
        <label>
          Input <span className="dim">JSON</span>
          <textarea
            name="params"
            rows={3}
            spellCheck={false}
            defaultValue={schedule ? compactJson(schedule.params) : ""}
            placeholder="null"
          />
        </label>
        <label>
          If the previous run has not ended
          <select name="overlap" defaultValue={schedule?.overlap ?? "allow"}>
            <option value="allow">start anyway</option>
            <option value="skip">skip the firing</option>
          </select>
        </label>
        <label>
          Firings that were missed
          <select name="missed" defaultValue={schedule?.missed ?? "last"}>
            <option value="last">start only the last one</option>
            <option value="all">start all of them</option>
            <option value="skip">start none of them</option>
          </select>
        </label>
        {error !== null && <Failed error={error} />}
        <div className="dialog-foot">
          <button type="submit" className="primary">
            Save
          </button>
        </div>
      </form>
    </Dialog>
  );
}

type Timing = { cron?: string; timezone?: string; everyMs?: number };

function Preview({ timing }: { timing: Timing }) {
  const key = useDeferredValue(JSON.stringify(timing));
  const isEmpty = timing.everyMs === undefined && !timing.cron?.trim();
  const preview = useQuery({
    queryKey: ["preview", key],
    enabled: !isEmpty,
    retry: false,
    gcTime: 0,
    queryFn: ({ signal }) =>
      ok(api.GET("/cron/preview", { signal, params: { query: JSON.parse(key) as Timing } })),
  });
  if (isEmpty) return null;
  if (preview.error) return <Failed error={preview.error} />;
  return (
    <div className="small" role="status">
      Next firings:
      <ol className="tries">
        {(preview.data?.firings ?? []).map((at) => (
          <li key={at}>
            <ExactTime at={at} />
          </li>
        ))}
      </ol>
    </div>
  );
}
