import { useQuery } from "@tanstack/react-query";
import { api, ok, type Schemas } from "../api/client";
import { JsonView } from "../jsonview";
import { Card, ExactTime, Loaded } from "../parts";
import type { RunRef } from "./run";

function InAndOut({ data }: { data: Schemas["InstanceView"] }) {
  const ended = data.meta.completedAt !== null && data.meta.completedAt !== undefined;
  return (
    <>
      <JsonView label="Input" value={data.meta.params} />
      {data.details.output !== undefined && data.details.output !== null ? (
        <JsonView label="Output" value={data.details.output} />
      ) : (
        <p className="dim">No output{ended ? "." : " yet."}</p>
      )}
    </>
  );
}

// An earlier generation has a run key of its own.
function OfGeneration({ run, generation }: { run: RunRef; generation: number }) {
  const path = { workflowName: run.workflowName, instanceId: run.instanceId };
  const found = useQuery({
    queryKey: ["run", run.runKey, "generation", generation],
    queryFn: async ({ signal }) => {
      let cursor: string | undefined;
      for (;;) {
        const query = { pageSize: 100, cursor };
        const page = await ok(
          api.GET("/workflows/{workflowName}/instances/{instanceId}/generations", {
            signal,
            params: { path, query },
          }),
        );
        const runKey = page.generations.find((one) => one.runNumber === generation)?.runKey;
        cursor = page.nextCursor ?? undefined;
        if (runKey) return ok(api.GET("/runs/{runKey}", { signal, params: { path: { runKey } } }));
        if (cursor === undefined) return null;
      }
    },
  });
  return (
    <Loaded query={found}>
      {(data) => (data ? <InAndOut data={data} /> : <p className="dim">This generation was deleted.</p>)}
    </Loaded>
  );
}

export function DataTab({ run, data }: { run: RunRef; data: Schemas["InstanceView"] }) {
  const path = { workflowName: run.workflowName, instanceId: run.instanceId };
  const state = useQuery({
    queryKey: ["run", run.runKey, "state", run.generation],
    queryFn: ({ signal }) =>
      ok(
        api.GET("/workflows/{workflowName}/instances/{instanceId}/state", {
          signal,
          params: { path, query: { runNumber: run.generation } },
        }),
      ),
  });
  const history = useQuery({
    queryKey: ["run", run.runKey, "messages", run.generation],
    queryFn: ({ signal }) =>
      ok(
        api.GET("/workflows/{workflowName}/instances/{instanceId}/history", {
          signal,
          params: { path, query: { runNumber: run.generation, pageSize: 100, order: "desc" } },
        }),
      ),
  });
  return (
    <div className="two">
      <Card title="Input and output">
        {run.generation === undefined || run.generation === data.meta.runNumber ? (
          <InAndOut data={data} />
        ) : (
          <OfGeneration run={run} generation={run.generation} />
        )}
        <Loaded query={state}>
          {(value) => (
            <>
              {value.error !== null && value.error !== undefined && (
                <JsonView label="Error" value={value.error} />
              )}
              {value.headers !== null && value.headers !== undefined && (
                <JsonView label="Headers" value={value.headers} />
              )}
              {value.state !== null && value.state !== undefined && (
                <JsonView label={`State of the model “${value.model}”`} value={value.state} />
              )}
            </>
          )}
        </Loaded>
      </Card>
      <Card title="Received events">
        <Loaded query={history}>
          {(value) =>
            value.events.length === 0 ? (
              <p className="dim">None. “Send event” in the header sends one.</p>
            ) : (
              <ul className="messages">
                {value.events.map((event) => (
                  <li key={event.id}>
                    <strong>{event.type}</strong>{" "}
                    <span className="dim small">
                      <ExactTime at={event.createdAt} />{" "}
                      {event.consumedByStepKey ? `→ ${event.consumedByStepKey}` : "not read yet"}
                    </span>
                    {event.payload !== null && event.payload !== undefined && (
                      <JsonView label="Payload" value={event.payload} />
                    )}
                  </li>
                ))}
                {value.eventsHasNextPage && <li className="dim">Only the newest 100 are shown.</li>}
              </ul>
            )
          }
        </Loaded>
      </Card>
    </div>
  );
}
