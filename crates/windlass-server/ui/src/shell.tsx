// The frame of every view: navigation, sign-in, the connection pill, and keys.
import { useQuery } from "@tanstack/react-query";
import { Link, Outlet, useNavigate } from "@tanstack/react-router";
import { type FormEvent, useEffect, useState } from "react";
import { ApiError, api, ok } from "./api/client";
import { live, type Me, MeContext, queries, usePill, useSetting, useZone } from "./app";
import { usePages } from "./pages";
import { Palette } from "./palette";
import { Dialog, Failed, Page } from "./parts";

export function Shell() {
  const me = useQuery({
    queryKey: ["whoami"],
    queryFn: ({ signal }) => ok(api.GET("/whoami", { signal })),
    retry: false,
  });
  const [signedOut, setSignedOut] = useState(false);
  useEffect(() => {
    const listen = () => setSignedOut(true);
    window.addEventListener("windlass:signed-out", listen);
    return () => window.removeEventListener("windlass:signed-out", listen);
  }, []);
  const refused = me.error instanceof ApiError && me.error.status === 401;
  if (refused || signedOut) {
    return (
      <SignIn
        done={(next) => {
          queries.setQueryData(["whoami"], next);
          setSignedOut(false);
          live.wake();
          // The same place, with everything read again.
          queries.invalidateQueries({ predicate: (query) => query.queryKey[0] !== "whoami" });
        }}
      />
    );
  }
  // Without a connection the page stays as it is; the pill says so.
  if (me.error && !me.data) {
    return (
      <main className="center">
        <Failed error={me.error} retry={() => me.refetch()} />
      </main>
    );
  }
  if (!me.data) return <main className="center dim">Reading…</main>;
  return (
    <MeContext value={me.data}>
      <Frame me={me.data} />
    </MeContext>
  );
}

function SignIn({ done }: { done: (me: Me) => void }) {
  const [key, setKey] = useState("");
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    document.title = "Sign in · Windlass";
  }, []);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setError(null);
    const { data, error: failure, response } = await api.POST("/session", { body: { key } });
    if (response.ok && data) done(data);
    else
      setError(
        new ApiError(response.status, failure?.code ?? "ERROR", failure?.message ?? "no reason given"),
      );
  };
  return (
    <main className="center">
      <form className="card sign-in" onSubmit={submit}>
        <h1>Windlass</h1>
        <p>
          Sign in with an API key of this server. The browser keeps it in a cookie that scripts cannot read.
        </p>
        <label htmlFor="key">API key</label>
        <input
          id="key"
          type="password"
          autoComplete="current-password"
          value={key}
          onChange={(event) => setKey(event.target.value)}
          placeholder="wl_…"
          required
        />
        {error !== null && <Failed error={error} />}
        <button type="submit" className="primary">
          Sign in
        </button>
        <p className="dim">
          No key? An operator creates one with <code>windlass keys create --name you --scopes read</code>.
        </p>
      </form>
    </main>
  );
}

function Frame({ me }: { me: Me }) {
  const pages = usePages();
  const [palette, setPalette] = useState(false);
  const [help, setHelp] = useState(false);
  const [menu, setMenu] = useState(false);
  // Not before the caller is known: a stream without a credential is refused.
  useEffect(() => live.connect(), []);
  useKeys(
    () => setPalette(true),
    () => setHelp(true),
  );
  return (
    <div className="frame">
      <a className="skip" href="#main">
        Skip to the content
      </a>
      <aside className={menu ? "side open" : "side"}>
        <div className="brand">
          <img src="./icon.svg" alt="" width="26" height="26" />
          <span>Windlass</span>
          <button type="button" className="menu plain" aria-expanded={menu} onClick={() => setMenu(!menu)}>
            Menu
          </button>
        </div>
        <nav aria-label="Views">
          {pages.map((page) => (
            <Link
              key={page.to}
              to={page.to}
              activeOptions={{ exact: page.to === "/", includeSearch: false }}
              activeProps={{ "aria-current": "page" }}
              onClick={() => setMenu(false)}
            >
              {page.label}
            </Link>
          ))}
        </nav>
        <div className="side-foot">
          <ConnectionPill />
          <button type="button" className="plain" onClick={() => setPalette(true)}>
            Go to… <kbd>⌘K</kbd>
          </button>
          <button type="button" className="plain" onClick={() => setHelp(true)}>
            Keys <kbd>?</kbd>
          </button>
          <Switches />
          <p className="dim small">
            {me.namespace} · {me.subject?.id ?? (me.signIn ? me.scopes.join(", ") : "no sign-in")} ·{" "}
            {me.version}
          </p>
          {me.signIn && (
            <button
              type="button"
              className="plain"
              onClick={async () => {
                await api.DELETE("/session");
                queries.clear();
                window.dispatchEvent(new Event("windlass:signed-out"));
              }}
            >
              Sign out
            </button>
          )}
        </div>
      </aside>
      <main id="main" tabIndex={-1}>
        <Outlet />
      </main>
      {palette && <Palette close={() => setPalette(false)} />}
      {help && <Keys close={() => setHelp(false)} />}
    </div>
  );
}

function ConnectionPill() {
  const state = usePill();
  const words = {
    live: "Live",
    connecting: "Connecting…",
    lost: "Connection lost",
    paused: "Paused",
  } as const;
  return (
    <button
      type="button"
      className={`pill p-${state}`}
      title={state === "paused" ? "Continue live updates" : "Pause live updates"}
      onClick={() => live.pause(state !== "paused")}
    >
      <span aria-hidden="true">●</span> {words[state]}
    </button>
  );
}

function Switches() {
  const [zone, setZone] = useZone();
  const [theme, setTheme] = useSetting("theme", "system");
  useEffect(() => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }, [theme]);
  return (
    <div className="switches">
      <label>
        Times
        <select value={zone} onChange={(event) => setZone(event.target.value as "local" | "utc")}>
          <option value="local">local</option>
          <option value="utc">UTC</option>
        </select>
      </label>
      <label>
        Theme
        <select value={theme} onChange={(event) => setTheme(event.target.value)}>
          <option value="system">system</option>
          <option value="light">light</option>
          <option value="dark">dark</option>
        </select>
      </label>
    </div>
  );
}

// `g` and then a letter goes to a view. Nothing happens while somebody types.
function useKeys(openPalette: () => void, openHelp: () => void) {
  const navigate = useNavigate();
  const pages = usePages();
  useEffect(() => {
    let going = false;
    const press = (event: KeyboardEvent) => {
      if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        openPalette();
        return;
      }
      const target = event.target as HTMLElement;
      const types = target.closest("input, textarea, select, dialog") !== null;
      if (types || event.metaKey || event.ctrlKey || event.altKey) return;
      if (going) {
        going = false;
        const page = pages.find((page) => page.key === event.key);
        if (page) {
          event.preventDefault();
          navigate({ to: page.to });
        }
      } else if (event.key === "g") going = true;
      else if (event.key === "?") openHelp();
      else if (event.key === "/") {
        const filter = document.querySelector<HTMLInputElement>("[data-filter]");
        if (filter) {
          event.preventDefault();
          filter.focus();
        }
      }
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, [navigate, pages, openPalette, openHelp]);
}

function Keys({ close }: { close: () => void }) {
  const pages = usePages();
  return (
    <Dialog title="Keys" close={close}>
      <dl className="keys">
        <dt>
          <kbd>⌘K</kbd> or <kbd>Ctrl K</kbd>
        </dt>
        <dd>go to a view, a workflow or a run</dd>
        <dt>
          <kbd>/</kbd>
        </dt>
        <dd>filter the list</dd>
        {pages.map((page) => (
          <div key={page.to} className="pair">
            <dt>
              <kbd>g</kbd> <kbd>{page.key}</kbd>
            </dt>
            <dd>{page.label}</dd>
          </div>
        ))}
        <dt>
          <kbd>Esc</kbd>
        </dt>
        <dd>close a dialog</dd>
      </dl>
    </Dialog>
  );
}

export function NotFound() {
  return (
    <Page title="There is no such page">
      <p>
        The address may be mistyped. Go to <Link to="/">the overview</Link> or press <kbd>⌘K</kbd> to find a
        run.
      </p>
    </Page>
  );
}
