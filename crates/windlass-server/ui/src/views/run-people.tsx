// Who is waited for: the open requests of a run, each with a link to its decision.
import { useQueries, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { api, ok, type Schemas } from "../api/client";
import { useMay } from "../app";
import { Time } from "../parts";
import { Quorum } from "./inbox";

/** The most open requests that the head of a run shows. */
const SHOWN_MAX = 5;

export function WaitsForPeople({ data }: { data: Schemas["InstanceView"] }) {
  const may = useMay();
  const path = { workflowName: data.workflowName, instanceId: data.id };
  const timeline = useQuery({
    queryKey: ["run", data.meta.runKey, "waits"],
    enabled: may("decide") && data.details.status === "waiting",
    queryFn: ({ signal }) =>
      ok(api.GET("/workflows/{workflowName}/instances/{instanceId}/timeline", { signal, params: { path } })),
  });
  const waits = (timeline.data?.rows ?? []).filter((row) => row.role === "request" && !row.endedAt);
  const steps = useQueries({
    queries: waits.slice(0, SHOWN_MAX).map((row) => ({
      queryKey: ["run", data.meta.runKey, "request", row.stepKey],
      retry: false,
      queryFn: async ({ signal }) => {
        const params = {
          path: { ...path, stepKey: row.stepKey },
          query: { position: row.position },
        };
        const step = await ok(
          api.GET("/workflows/{workflowName}/instances/{instanceId}/steps/{stepKey}", { signal, params }),
        );
        const id = (step.input as { request?: string } | null | undefined)?.request;
        if (!id) return null;
        return ok(api.GET("/inbox/{id}", { signal, params: { path: { id } } }));
      },
    })),
  });
  const requests = steps.flatMap((step) => (step.data ? [step.data] : []));
  if (requests.length === 0) return null;
  return (
    <ul className="people">
      {requests.map((request) => (
        <li key={request.id}>
          <span>
            Waits for <strong>{request.assignees.join(", ")}</strong>: {request.title}
          </span>
          <Quorum request={request} />
          {request.dueAt && (
            <span className="dim small">
              due <Time at={request.dueAt} />
            </span>
          )}
          <Link to="/inbox" search={{ of: may("manage") ? "all" : "mine", id: request.id }}>
            Open in the inbox
          </Link>
        </li>
      ))}
      {waits.length > SHOWN_MAX && <li className="dim">and {waits.length - SHOWN_MAX} more</li>}
    </ul>
  );
}
