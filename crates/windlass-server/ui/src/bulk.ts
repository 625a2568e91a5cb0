// The filter of an act on all runs that match: it must choose the runs that the list shows, or none.
import type { Schemas } from "./api/client";
import type { RunsSearch } from "./views/runs";

/** The parts of `key:value`, as the server reads a label; nothing if it is not one. */
export function readLabel(text: string): [key: string, value: string] | undefined {
  const colon = text.indexOf(":");
  if (colon < 1 || text.includes("\0")) return undefined;
  return [text.slice(0, colon), text.slice(colon + 1)];
}

/** The filter for `POST /runs/bulk`, or why there is none. */
export function bulkFilter(search: RunsSearch): { filter: Schemas["BulkFilter"] } | { problem: string } {
  if (search.status !== undefined && search.status.length > 1)
    return { problem: "Choose one status to act on all runs." };
  const label = search.label === undefined ? undefined : readLabel(search.label);
  if (search.label !== undefined && !label)
    return { problem: "Write the label as key:value to act on all runs." };
  return {
    filter: {
      workflow: search.workflow,
      status: search.status?.[0],
      labels: label ? { [label[0]]: label[1] } : {},
      createdFrom: search.from,
      idPrefix: search.id,
      errorCode: search.error,
      model: search.model,
      rootsOnly: search.roots ?? false,
    },
  };
}
