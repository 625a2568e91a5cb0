// Requests to people: what is asked, about what, how many have decided, and the decision.
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useSearch } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { ApiError, api, ok, type Schemas } from "../api/client";
import { queries, useMay, useMe } from "../app";
import { parseJson } from "../json";
import { JsonView } from "../jsonview";
import { Act, Card, Dialog, Empty, ExactTime, Failed, Loaded, Page, Status, Time } from "../parts";
import { About } from "./about";
import { DocumentApprovals } from "./approvals";
import { RunLink } from "./run";

export const requestStates = ["open", "approved", "rejected", "expired", "withdrawn", "stale"] as const;
export type InboxSearch = { of?: string; status?: (typeof requestStates)[number]; id?: string };
type Request = Schemas["RequestView"];

export function Inbox() {
  const may = useMay();
  if (!may("decide")) {
    return (
      <Page title="Inbox">
        <Empty title="You may not decide">
          <p>
            The inbox needs a key with the scope <code>decide</code> that stands for a person:{" "}
            <code>windlass keys create --name ann --scopes read,decide --subject ann:approver</code>.
          </p>
        </Empty>
      </Page>
    );
  }
  return (
    <Page title="Inbox">
      <Requests />
      <DocumentApprovals />
    </Page>
  );
}

function Requests() {
  const { subject } = useMe();
  const may = useMay();
  const search = useSearch({ from: "/inbox" });
  const of = search.of ?? (subject ? "mine" : "all");
  const status = of === "all" ? (search.status ?? "open") : undefined;
  const inbox = useInfiniteQuery({
    queryKey: ["lists", "inbox", of, status],
    initialPageParam: undefined as string | undefined,
    queryFn: ({ pageParam, signal }) =>
      ok(
        api.GET("/inbox", {
          signal,
          params: { query: { of, status, order: "due", limit: 100, cursor: pageParam } },
        }),
      ),
    getNextPageParam: (page) => page.nextCursor ?? undefined,
    retry: false,
  });
  const rows = inbox.data?.pages.flatMap((page) => page.requests) ?? [];
  const needsPerson = inbox.error instanceof ApiError && inbox.error.code === "SUBJECT_REQUIRED";
  return (
    <>
      <nav className="chips" aria-label="Whose requests">
        <Scope label="mine" search={{ of: "mine" }} chosen={of === "mine"} />
        {subject?.roles.map((role) => (
          <Scope
            key={role}
            label={`role ${role}`}
            search={{ of: `role:${role}` }}
            chosen={of === `role:${role}`}
          />
        ))}
        {may("manage") &&
          requestStates.map((state) => (
            <Scope
              key={state}
              label={`all ${state}`}
              search={{ of: "all", status: state }}
              chosen={status === state}
            />
          ))}
      </nav>
      {needsPerson || (!subject && !may("manage")) ? (
        <NoPerson />
      ) : inbox.error && rows.length === 0 ? (
        <Failed error={inbox.error} retry={() => inbox.refetch()} />
      ) : (
        <div className="two">
          <Card
            title={`Requests${rows.length > 0 ? ` (${rows.length}${inbox.hasNextPage ? "+" : ""})` : ""}`}
          >
            {inbox.isPending && <p className="dim loading">Reading…</p>}
            {!inbox.isPending && rows.length === 0 && <NoRequest of={of} status={status} />}
            <ul className="inbox">
              {rows.map((row) => (
                <li key={row.id}>
                  <Link
                    to="/inbox"
                    search={{ ...search, id: row.id }}
                    aria-current={row.id === search.id || undefined}
                  >
                    <strong className="wrap">{row.title}</strong>
                    <span className="dim small">
                      {row.assignees.join(", ")} · {row.approvals} of {row.quorum}
                      {row.dueAt && row.status === "open" && (
                        <>
                          {" "}
                          · due <Time at={row.dueAt} />
                        </>
                      )}
                    </span>
                    {row.status !== "open" && <Status status={row.status} />}
                  </Link>
                </li>
              ))}
            </ul>
            {inbox.hasNextPage && (
              <button type="button" disabled={inbox.isFetchingNextPage} onClick={() => inbox.fetchNextPage()}>
                Read more
              </button>
            )}
          </Card>
          {search.id && <Detail key={search.id} id={search.id} />}
        </div>
      )}
    </>
  );
}

function Scope(props: { label: string; search: InboxSearch; chosen: boolean }) {
  return (
    <Link to="/inbox" search={props.search} className="chip" aria-current={props.chosen || undefined}>
      {props.label}
    </Link>
  );
}

function NoPerson() {
  return (
    <Empty title="Your credential stands for no person">
      <p>
        Only a person can decide. Sign in with a key for a person, or start{" "}
        <code>windlass dev --as ann:approver</code>.
      </p>
    </Empty>
  );
}

function NoRequest({ of, status }: { of: string; status?: string }) {
  return (
    <p className="dim">
      {of === "all" ? `No request is ${status}.` : "Nobody waits for you."} A run asks with{" "}
      <code>ctx.request</code>; the sample <code>expense</code> of <code>windlass dev</code> does.
    </p>
  );
}

function Detail({ id }: { id: string }) {
  const request = useQuery({
    queryKey: ["lists", "request", id],
    queryFn: ({ signal }) => ok(api.GET("/inbox/{id}", { signal, params: { path: { id } } })),
    retry: false,
  });
  return <Loaded query={request}>{(data) => <RequestCard request={data} />}</Loaded>;
}

function RequestCard({ request }: { request: Request }) {
  return (
    <section className="card" aria-label={request.title}>
      <div className="card-head">
        <h2 className="wrap">{request.title}</h2>
        <Status status={request.status} />
      </div>
      {request.text !== "" && <p className="text">{request.text}</p>}
      <Quorum request={request} />
      <dl className="facts">
        <Fact name="Asked">{request.assignees.join(", ")}</Fact>
        {request.requester && <Fact name="For">{request.requester}</Fact>}
        <Fact name="Run">
          <RunLink run={{ workflowName: request.workflow, id: request.instanceId }} />
        </Fact>
        <Fact name="Opened">
          <ExactTime at={request.openedAt} />
        </Fact>
        {request.dueAt && (
          <Fact name="Due">
            <Time at={request.dueAt} />
          </Fact>
        )}
        {request.closedAt && (
          <Fact name="Closed">
            <ExactTime at={request.closedAt} /> {request.reason}
          </Fact>
        )}
      </dl>
      <About about={request.about} approved={request.lastApproved} />
      {request.status === "open" && <Decide request={request} />}
      <Decisions request={request} />
      <Comments request={request} />
    </section>
  );
}

function Fact({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

export function Quorum({ request }: { request: Request }) {
  return (
    <p className="quorum">
      <progress max={request.quorum} value={request.approvals} aria-label="Approvals" /> {request.approvals}{" "}
      of {request.quorum} {request.quorum === 1 ? "approval" : "approvals"}
      {request.rejections > 0 && <span className="bad"> · {request.rejections} rejected</span>}
    </p>
  );
}

const reread = () => queries.invalidateQueries();

function Decide({ request }: { request: Request }) {
  const { subject } = useMe();
  const may = useMay();
  const [comment, setComment] = useState("");
  const [answer, setAnswer] = useState("");
  const path = { id: request.id };
  const digest = (request.about as { digest?: string } | null | undefined)?.digest;
  const decide = (choice: string) => {
    if (answer.trim() !== "") parseJson(answer);
    // Sent as it was typed: the server keeps the digits of numbers.
    const members = [`"choice":${JSON.stringify(choice)}`];
    if (answer.trim() !== "") members.push(`"answer":${answer}`);
    if (comment.trim() !== "") members.push(`"comment":${JSON.stringify(comment)}`);
    if (digest) members.push(`"about":${JSON.stringify(digest)}`);
    return ok(
      api.POST("/inbox/{id}/decide", {
        params: { path },
        body: { choice },
        bodySerializer: () => `{${members.join(",")}}`,
        headers: { "content-type": "application/json" },
      }),
    );
  };
  const withdraw = (may("manage") || subject?.id === request.requester) && (
    <Act
      label="Withdraw"
      danger
      ask={<p>The request ends without a decision, and the run continues with that outcome.</p>}
      act={() => ok(api.POST("/inbox/{id}/withdraw", { params: { path }, body: {} }))}
      done={reread}
    />
  );
  if (!subject) {
    return (
      <>
        <p className="notice">Your credential stands for no person, so you cannot decide.</p>
        <div className="actions">{withdraw}</div>
      </>
    );
  }
  return (
    <div className="form decide">
      {request.schema !== null && request.schema !== undefined && (
        <>
          <label>
            Answer <span className="dim">JSON that fits the schema</span>
            <textarea
              name="answer"
              rows={4}
              spellCheck={false}
              value={answer}
              onChange={(event) => setAnswer(event.target.value)}
            />
          </label>
          <details>
            <summary>The schema</summary>
            <JsonView label="Schema" value={request.schema} />
          </details>
        </>
      )}
      <label>
        Comment <span className="dim">optional</span>
        <textarea
          name="comment"
          rows={2}
          maxLength={4000}
          value={comment}
          onChange={(event) => setComment(event.target.value)}
        />
      </label>
      <div className="actions">
        {request.choices.map((choice) => (
          <Act
            key={choice.name}
            label={choice.name}
            danger={choice.verdict === "reject"}
            ask={
              <p>
                You, {subject.id}, choose “{choice.name}” for “{request.title}”. A decision is final.
                {digest && <span className="dim small"> It is about {digest.slice(0, 19)}….</span>}
              </p>
            }
            act={async () => decide(choice.name)}
            done={() => {
              setComment("");
              setAnswer("");
              reread();
            }}
          />
        ))}
        <AddComment id={request.id} />
        <Delegate id={request.id} />
        {withdraw}
      </div>
    </div>
  );
}

function AddComment({ id }: { id: string }) {
  const [open, setOpen] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const text = String(new FormData(event.currentTarget).get("text") ?? "");
    try {
      await ok(api.POST("/inbox/{id}/comment", { params: { path: { id } }, body: { text } }));
      setOpen(false);
      reread();
    } catch (caught) {
      setError(caught);
    }
  };
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>
        Comment
      </button>
      {open && (
        <Dialog title="Comment" close={() => setOpen(false)}>
          <form className="dialog-body form" onSubmit={submit}>
            <label>
              Text <span className="dim">everybody who is asked can read it</span>
              <textarea name="text" rows={4} maxLength={4000} required data-autofocus="" />
            </label>
            {error !== null && <Failed error={error} />}
            <div className="dialog-foot">
              <button type="submit" className="primary">
                Add the comment
              </button>
            </div>
          </form>
        </Dialog>
      )}
    </>
  );
}

function Delegate({ id }: { id: string }) {
  const [open, setOpen] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    try {
      const body = { to: String(form.get("to")), until: new Date(String(form.get("until"))).toISOString() };
      await ok(api.POST("/inbox/{id}/delegate", { params: { path: { id } }, body }));
      setOpen(false);
      reread();
    } catch (caught) {
      setError(caught);
    }
  };
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>
        Delegate
      </button>
      {open && (
        <Dialog title="Delegate" close={() => setOpen(false)}>
          <form className="dialog-body form" onSubmit={submit}>
            <p>Another person decides for you. You cannot decide until the delegation ends.</p>
            <label>
              Person
              <input name="to" required autoComplete="off" data-autofocus="" />
            </label>
            <label>
              Until
              <input name="until" type="datetime-local" required />
            </label>
            {error !== null && <Failed error={error} />}
            <div className="dialog-foot">
              <button type="submit" className="primary">
                Delegate
              </button>
            </div>
          </form>
        </Dialog>
      )}
    </>
  );
}

function Decisions({ request }: { request: Request }) {
  const decisions = request.decisions ?? [];
  return (
    <>
      <h3>Decisions</h3>
      {decisions.length === 0 && <p className="dim small">None yet.</p>}
      <ul className="messages">
        {decisions.map((one) => (
          <li key={one.by}>
            <span className={one.verdict === "approve" ? "good" : "bad"}>{one.choice}</span> by{" "}
            <strong>{one.by}</strong>
            {one.onBehalfOf && ` for ${one.onBehalfOf}`}{" "}
            <span className="dim small">
              <ExactTime at={one.at} />
            </span>
            {one.comment && <p className="text">{one.comment}</p>}
            {one.answer !== null && one.answer !== undefined && (
              <JsonView label="Answer" value={one.answer} />
            )}
          </li>
        ))}
        {request.delegations.map((one) => (
          <li key={`${one.from} ${one.to} ${one.until}`}>
            <strong>{one.from}</strong> lets <strong>{one.to}</strong> decide until{" "}
            <ExactTime at={one.until} />
          </li>
        ))}
      </ul>
    </>
  );
}

function Comments({ request }: { request: Request }) {
  if (request.comments.length === 0) return null;
  return (
    <>
      <h3>Comments</h3>
      <ul className="messages">
        {request.comments.map((one) => (
          <li key={`${one.by} ${one.at}`}>
            <strong>{one.by}</strong>{" "}
            <span className="dim small">
              <ExactTime at={one.at} />
            </span>
            <p className="text">{one.text}</p>
          </li>
        ))}
      </ul>
    </>
  );
}
