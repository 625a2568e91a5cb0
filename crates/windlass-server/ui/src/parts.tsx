// Small parts that all views use.
import { type ReactNode, useEffect, useRef, useState } from "react";
import { ApiError } from "./api/client";
import { useNow, useZone } from "./app";
import { formatAgo, formatTime } from "./format";

export function Status({ status }: { status: string }) {
  return <span className={`status s-${status}`}>{status}</span>;
}

export function Time({ at }: { at: string | null | undefined }) {
  const [zone] = useZone();
  const now = useNow();
  if (!at) return <span className="dim">–</span>;
  return (
    <time dateTime={at} title={formatTime(at, zone)}>
      {formatAgo(at, now)}
    </time>
  );
}

export function ExactTime({ at }: { at: string | null | undefined }) {
  const [zone] = useZone();
  if (!at) return <span className="dim">–</span>;
  return <time dateTime={at}>{formatTime(at, zone)}</time>;
}

export function Failed({ error, retry }: { error: unknown; retry?: () => void }) {
  const code = error instanceof ApiError ? error.code : "ERROR";
  const text = error instanceof Error ? error.message : String(error);
  return (
    <div className="notice error" role="alert">
      <strong>{code}</strong> <span>{text}</span>
      {retry && (
        <button type="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

type Query<T> = { data: T | undefined; error: unknown; isPending: boolean; refetch: () => unknown };

/** Shows the data of a query, its error with a way out, or that it is being read. */
export function Loaded<T>({ query, children }: { query: Query<T>; children: (data: T) => ReactNode }) {
  if (query.data !== undefined) return <>{children(query.data)}</>;
  if (query.error) return <Failed error={query.error} retry={() => query.refetch()} />;
  return (
    <p className="dim loading" role="status">
      Reading…
    </p>
  );
}

export function Page({
  title,
  actions,
  children,
}: {
  title: ReactNode;
  actions?: ReactNode;
  children: ReactNode;
}) {
  useEffect(() => {
    if (typeof title === "string") document.title = `${title} · Windlass`;
  }, [title]);
  return (
    <>
      <header className="page-head">
        <h1>{title}</h1>
        {actions && <div className="actions">{actions}</div>}
      </header>
      {children}
    </>
  );
}

export function Card({ title, children, aside }: { title?: string; children: ReactNode; aside?: ReactNode }) {
  return (
    <section className="card">
      {title && (
        <div className="card-head">
          <h2>{title}</h2>
          {aside}
        </div>
      )}
      {children}
    </section>
  );
}

/** A modal dialog. The browser keeps the focus inside, and Escape closes it. */
export function Dialog({
  title,
  close,
  children,
}: {
  title: string;
  close: () => void;
  children: ReactNode;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = ref.current;
    if (dialog && !dialog.open) {
      dialog.showModal();
      // The browser would choose the button that closes the dialog.
      dialog.querySelector<HTMLElement>("[data-autofocus], .dialog-body input, .dialog-body select")?.focus();
    }
  }, []);
  return (
    <dialog ref={ref} aria-label={title} onClose={close}>
      <div className="dialog-head">
        <h2>{title}</h2>
        <button type="button" className="plain" onClick={close} aria-label="Close">
          ✕
        </button>
      </div>
      {children}
    </dialog>
  );
}

/** A button that asks before it acts, and shows the error of the act. */
export function Act(props: {
  label: string;
  ask?: ReactNode;
  danger?: boolean;
  act: () => Promise<unknown>;
  done?: () => void;
}) {
  const [asking, setAsking] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const run = async () => {
    setBusy(true);
    setError(null);
    try {
      await props.act();
      setAsking(false);
      props.done?.();
    } catch (caught) {
      setError(caught);
      setAsking(true);
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <button
        type="button"
        className={props.danger ? "danger" : ""}
        disabled={busy}
        onClick={() => (props.ask ? setAsking(true) : run())}
      >
        {props.label}
      </button>
      {asking && (
        <Dialog title={props.label} close={() => setAsking(false)}>
          <div className="dialog-body">
            {props.ask}
            {error !== null && <Failed error={error} />}
          </div>
          <div className="dialog-foot">
            <button type="button" onClick={() => setAsking(false)}>
              Keep as it is
            </button>
            <button
              type="button"
              className={props.danger ? "danger" : "primary"}
              disabled={busy}
              onClick={run}
            >
              {props.label}
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

// Browsers have a clipboard for scripts only over HTTPS and on the own machine.
async function copy(text: string, near: HTMLElement) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Beside the button, because a dialog takes the focus back from what is outside.
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "off-screen";
  near.after(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  near.focus();
  if (!copied) throw new Error("the browser refuses to copy");
}

export function Copy({ text, label }: { text: string; label: string }) {
  const [said, setSaid] = useState("");
  useEffect(() => {
    if (said === "") return;
    const timer = setTimeout(() => setSaid(""), 1500);
    return () => clearTimeout(timer);
  }, [said]);
  return (
    <button
      type="button"
      className="plain"
      title={text}
      onClick={(event) =>
        copy(text, event.currentTarget).then(
          () => setSaid("Copied"),
          () => setSaid("Not copied"),
        )
      }
    >
      {said || label}
    </button>
  );
}
