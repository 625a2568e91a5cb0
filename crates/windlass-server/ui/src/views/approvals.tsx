// Approvals of documents (the model `contracts`): who is asked, the pinned version with its changes, the decision.
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { at, call } from "../api/raw";
import { queries, useMay, useMe } from "../app";
import { isoOf } from "../contracts";
import { ChangesView, DiffView } from "../diffview";
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
  chain?: { stage: number; stages: unknown[] } | null;
  dueAt?: number | null;
  createdAt: number;
};

/** A request with the content that it is about, for the person who asks. */
type Review = Approval & {
  content: unknown;
  /** The last version before it that the person approved. */
  since: number | null;
  /** The fields that differ from that version. */
  diff: Record<string, { from?: unknown; to?: unknown }>;
  /** The approvals, or their weight; absent if the request is not open. */
  quorum?: { granted: number; needed: number };
};

const PAGE = 50;

/** The approvals that ask the caller. Nothing is shown if the server has no documents. */
export function DocumentApprovals() {
  const { subject, routeSets } = useMe();
  const has = subject !== null && subject !== undefined && routeSets.includes("contracts");
  const approvals = useInfiniteQuery({
    queryKey: ["lists", "approvals"],
    enabled: has,
    retry: false,
    initialPageParam: "",
    queryFn: ({ pageParam, signal }) => call<ApprovalPage>(`/approvals?${pageOf(pageParam)}`, { signal }),
    getNextPageParam: nextOf,
  });
  if (!has) return null;
  return (
    <Card title="Approvals of documents">
      <ApprovalPages query={approvals} none="No document waits for your approval." />
    </Card>
  );
}

export type ApprovalPage = { approvals: Approval[] };

/** The query of a page that begins after an approval. */
export function pageOf(after: string): URLSearchParams {
  const query = new URLSearchParams({ limit: String(PAGE) });
  if (after) query.set("after", after);
  return query;
}

/** The approval after which the next page begins. */
export function nextOf({ approvals }: ApprovalPage): string | undefined {
  return approvals.length === PAGE ? approvals[PAGE - 1].id : undefined;
}

type Pages = {
  data: { pages: ApprovalPage[] } | undefined;
  error: unknown;
  isPending: boolean;
  refetch: () => unknown;
  hasNextPage: boolean;
  isFetchingNextPage: boolean;
  fetchNextPage: () => unknown;
};

export function ApprovalPages({ query, none }: { query: Pages; none: string }) {
  return (
    <Loaded query={query}>
      {({ pages }) => {
        const all = pages.flatMap((page) => page.approvals);
        if (all.length === 0) return <p className="dim small">{none}</p>;
        return (
          <>
            <ul className="messages">
              {all.map((one) => (
                <ApprovalRow key={one.id} approval={one} />
              ))}
            </ul>
            {query.hasNextPage && (
              <button type="button" disabled={query.isFetchingNextPage} onClick={() => query.fetchNextPage()}>
                More approvals
              </button>
            )}
          </>
        );
      }}
    </Loaded>
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
        {decided.length} of {approval.asked.length} people decided
        {approval.chain &&
          ` · stage ${Math.min(approval.chain.stage + 1, approval.chain.stages.length)} of ${approval.chain.stages.length}`}
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
      <p>
        <Link to="/documents" search={{ type: approval.type, id: approval.document }}>
          {approval.type}/{approval.document}
        </Link>
      </p>
      {may("decide") ? (
        <Reviewed approval={approval} />
      ) : may("records") ? (
        <Content approval={approval} />
      ) : (
        <p className="notice">
          The content needs a key with the scope <code>decide</code> or <code>records</code>.
        </p>
      )}
      <p className="dim small mono wrap">{approval.digest}</p>
      {approval.status === "open" && <Decide approval={approval} />}
    </div>
  );
}

/** The content, with the changes since the version that the person approved last. */
function Reviewed({ approval }: { approval: Approval }) {
  const may = useMay();
  const { version } = approval;
  const review = useQuery({
    queryKey: ["lists", "approval", approval.id],
    retry: false,
    queryFn: ({ signal }) => call<Review>(at("approvals", approval.id), { signal }),
  });
  return (
    <Loaded query={review}>
      {(data) => (
        <>
          {data.quorum && (
            <p>
              Quorum so far: <strong>{data.quorum.granted}</strong> of {data.quorum.needed}
              {approval.chain && " in this stage"}.
            </p>
          )}
          <JsonView label={`Version ${version}`} value={data.content} />
          {data.since !== null ? (
            <ChangesView
              label={`Changes since version ${data.since}, which you approved`}
              changes={Object.entries(data.diff).map(([path, one]) => ({
                path,
                before: one.from,
                after: one.to,
              }))}
            />
          ) : (
            version > 1 && may("records") && <Previous approval={approval} content={data.content} />
          )}
        </>
      )}
    </Loaded>
  );
}

function useVersion(approval: Approval, version: number) {
  const { type, document } = approval;
  return useQuery({
    queryKey: ["lists", "document-version", type, document, version],
    queryFn: ({ signal }) =>
      call<{ content: unknown }>(at("documents", type, document, "versions", String(version)), { signal }),
  });
}

function Content({ approval }: { approval: Approval }) {
  const pinned = useVersion(approval, approval.version);
  return (
    <Loaded query={pinned}>
      {(data) => <JsonView label={`Version ${approval.version}`} value={data.content} />}
    </Loaded>
  );
}

function Previous({ approval, content }: { approval: Approval; content: unknown }) {
  const before = useVersion(approval, approval.version - 1);
  return (
    <Loaded query={before}>
      {(data) => (
        <DiffView
          label={`You have approved no earlier version. Changes since version ${approval.version - 1}`}
          before={data.content}
          after={content}
        />
      )}
    </Loaded>
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
