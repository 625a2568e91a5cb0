// One EventSource that is opened again when the followed runs change or the connection is lost.

/** A run key, alone or with `@` and the number of events that the page has read of it. */
export type Followed = string;
export type FromTab = { url: string; runs: Followed[] | null; wake?: boolean };
export type Pill = "live" | "connecting" | "lost" | "paused";
export type ToTab = { kind: "state"; state: Pill } | { kind: "run"; runs: string[] } | { kind: "lists" };

/** The most runs that the server follows. */
const RUNS_MAX = 64;

export class Stream {
  private source: EventSource | null = null;
  /** The source that goes on until its successor is open, so that no hint is missed between both. */
  private before: EventSource | null = null;
  private key = "";
  private now: Pill = "connecting";
  private retry: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly send: (message: ToTab) => void) {}

  state(): ToTab {
    return { kind: "state", state: this.now };
  }

  private set(state: Pill) {
    if (state === this.now) return;
    this.now = state;
    this.send(this.state());
  }

  /** Follows these runs; null closes the stream. */
  follow(url: string, runs: Followed[] | null) {
    // What somebody has read of a run does not matter to a stream that follows it already.
    const keys = (runs ?? []).slice(0, RUNS_MAX);
    const names = [...new Set(keys.map((run) => run.split("@")[0]))].sort();
    const key = runs === null ? "" : `${url}?${names.join(",")}`;
    if (key === this.key) return;
    this.key = key;
    clearTimeout(this.retry);
    if (runs === null) {
      this.close();
      this.set("connecting");
      return;
    }
    const query = keys.map((run) => `run=${encodeURIComponent(run)}`);
    const target = `${url}${query.length > 0 ? "?" : ""}${query.join("&")}`;
    if (this.now === "live") this.replace(target);
    else {
      this.close();
      this.open(target, 1000);
    }
  }

  /** Opens a stream that was lost at once, for example after somebody has signed in again. */
  wake() {
    if (!this.source || this.source.readyState !== EventSource.CLOSED) return;
    clearTimeout(this.retry);
    this.open(this.source.url, 1000);
  }

  private close() {
    this.source?.close();
    this.before?.close();
    this.source = null;
    this.before = null;
  }

  // Another set of runs is no interruption: nothing is announced, and nothing has to be read again.
  private replace(url: string) {
    // One that is not open yet has no hints to give.
    if (this.before) this.source?.close();
    else this.before = this.source;
    this.listen(url, 1000);
  }

  private open(url: string, delay: number) {
    this.set("connecting");
    this.listen(url, delay);
  }

  private listen(url: string, delay: number) {
    const source = new EventSource(url, { withCredentials: true });
    this.source = source;
    source.addEventListener("open", () => {
      if (this.source !== source) return;
      this.before?.close();
      this.before = null;
      this.set("live");
    });
    source.addEventListener("run", (event) => {
      const runs = JSON.parse((event as MessageEvent<string>).data).runs as string[];
      this.send({ kind: "run", runs });
    });
    source.addEventListener("lists", () => this.send({ kind: "lists" }));
    source.addEventListener("error", () => {
      // The successor of this one says what follows.
      if (this.source !== source) return;
      this.before?.close();
      this.before = null;
      this.set("lost");
      // The browser gives up after an answer that is not a stream, for example 401.
      if (source.readyState !== EventSource.CLOSED) return;
      this.retry = setTimeout(() => this.open(url, Math.min(delay * 2, 30_000)), delay);
    });
  }
}
