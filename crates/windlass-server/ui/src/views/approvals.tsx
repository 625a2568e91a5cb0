// Approvals of documents (the model `contracts`): who is asked, the pinned version with its changes, the decision.
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { at, call } from "../api/raw";
import { queries, useMay, useMe } from "../app";
import { isoOf } from "../contracts";
import { DiffView } from "../diffview";
import { JsonView } from "../jsonview";
import { Act, Card, ExactTime, Loaded, Status, Time } from "../parts";

export type Approval = {
  id: string;
  type: string;
  document: string;
  version: number;
  digest: string;
  node: string;
  label?: string | null;
  asked: { person: string; onBehalfOf?: string | null; reason: string }[];
  decisions: Record<string, { verdict: string; at: number; why?: string | null }>;
  status: string;
  dueAt?: number | null;
  createdAt: number;
};

/** The approvals that ask the caller. Nothing is shown if the server has no documents. */
export function DocumentApprovals() {
  const { subject, routeSets } = useMe();
  const has = subject !== null && subject !== undefined && routeSets.includes("contracts");
  const approvals = useQuery({
    queryKey: ["lists", "approvals"],
    enabled: has,
    retry: false,
    queryFn: ({ signal }) => call<{ approvals: Approval[] }>("/approvals?limit=100", { signal }),
  });
  if (!has) return null;
  return (
    <Card title="Approvals of documents">
      <Loaded query={approvals}>
        {(data) =>
          data.approvals.length === 0 ? (
            <p className="dim">No document waits for your approval.</p>
          ) : (
            <ul className="messages">
              {data.approvals.map((one) => (
                <ApprovalRow key={one.id} approval={one} />
              ))}
            </ul>
          )
        }
      </Loaded>
    </Card>
  );
}

export function ApprovalRow({ approval }: { approval: Approval }) {
  const [open, setOpen] = useState(false);
  const decided = Object.entries(approval.decisions ?? {});
  return (
    <li>
      <button type="button" className="j-toggle" aria-expanded={open} onClick={() => setOpen(!open)}>
        <span aria-hidden="true">{open ? "▾" : "▸"}</span> <strong>{approval.label ?? approval.node}</strong>{" "}
        {approval.type}/{approval.document} version {approval.version}
      </button>{" "}
      <Status status={approval.status} />{" "}
      <span className="dim small">
        {decided.length} of {approval.asked.length} decided
        {approval.dueAt && (
          <>
            {" "}
            · due <Time at={isoOf(approval.dueAt)} />
          </>
        )}
      </span>
      {open && <Detail approval={approval} />}
    </li>
  );
}

function Detail({ approval }: { approval: Approval }) {
  const may = useMay();
  const decided = Object.entries(approval.decisions ?? {});
  return (
    <div className="event-detail">
      <p>
        Asked:{" "}
        {approval.asked
          .map((one) => (one.onBehalfOf ? `${one.person} for ${one.onBehalfOf}` : one.person))
          .join(", ")}
      </p>
      {decided.map(([person, one]) => (
        <p key={person}>
          <strong>{person}</strong> {one.verdict}{" "}
          <span className="dim small">
            <ExactTime at={isoOf(one.at)} />
          </span>{" "}
          {one.why}
        </p>
      ))}
      {may("records") ? (
        <Pinned approval={approval} />
      ) : (
        <p className="notice">
          The content needs a key with the scope <code>records</code>.
        </p>
      )}
      <p className="dim small mono wrap">{approval.digest}</p>
      {approval.status === "open" && <Decide approval={approval} />}
    </div>
  );
}

function Pinned({ approval }: { approval: Approval }) {
  const { type, document, version } = approval;
  const pinned = useQuery({
    queryKey: ["lists", "document-version", type, document, version],
    queryFn: ({ signal }) =>
      call<{ content: unknown }>(at("documents", type, document, "versions", String(version)), { signal }),
  });
  const before = useQuery({
    queryKey: ["lists", "document-version", type, document, version - 1],
    enabled: version > 1,
    queryFn: ({ signal }) =>
      call<{ content: unknown }>(at("documents", type, document, "versions", String(version - 1)), {
        signal,
      }),
  });
  return (
    <>
      <p>
        <Link to="/documents" search={{ type, id: document }}>
          {type}/{document}
        </Link>
      </p>
      <Loaded query={pinned}>
        {(data) => (
          <>
            <JsonView label={`Version ${version}`} value={data.content} />
            {before.data && (
              <DiffView
                label={`Changes since version ${version - 1}`}
                before={before.data.content}
                after={data.content}
              />
            )}
          </>
        )}
      </Loaded>
    </>
  );
}

function Decide({ approval }: { approval: Approval }) {
  const { subject } = useMe();
  const [reason, setReason] = useState("");
  const [to, setTo] = useState("");
  const post = (decision: string, body: object) =>
    call(at("approvals", approval.id, decision), { method: "POST", body });
  const done = () => queries.invalidateQueries();
  if (!subject) return null;
  const why = reason.trim() === "" ? {} : { reason };
  return (
    <div className="form">
      <label>
        Reason <span className="dim">optional</span>
        <textarea rows={2} value={reason} onChange={(event) => setReason(event.target.value)} />
      </label>
      <div className="actions">
        {["approve", "reject", "abstain"].map((decision) => (
          <Act
            key={decision}
            label={decision}
            danger={decision === "reject"}
            ask={
              <p>
                You, {subject.id}, {decision} {approval.type}/{approval.document} version {approval.version}.
                A decision is final.
              </p>
            }
            act={() => post(decision, { digest: approval.digest, ...why })}
            done={done}
          />
        ))}
        <input
          aria-label="Delegate to"
          placeholder="person"
          value={to}
          onChange={(event) => setTo(event.target.value)}
        />
        {to !== "" && (
          <Act
            label="delegate"
            ask={<p>{to} decides instead of you.</p>}
            act={() => post("delegate", { to })}
            done={done}
          />
        )}
      </div>
    </div>
  );
}
