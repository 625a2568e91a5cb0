// One EventSource that is opened again when the followed runs change or the connection is lost.

export type FromTab = { url: string; runs: string[] | null; wake?: boolean };
export type Pill = "live" | "connecting" | "lost" | "paused";
export type ToTab = { kind: "state"; state: Pill } | { kind: "run"; runs: string[] } | { kind: "lists" };

export class Stream {
  private source: EventSource | null = null;
  private key = "";
  private now: Pill = "connecting";
  private retry: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly send: (message: ToTab) => void) {}

  state(): ToTab {
    return { kind: "state", state: this.now };
  }

  private set(state: Pill) {
    this.now = state;
    this.send(this.state());
  }

  /** Follows these runs; null closes the stream. */
  follow(url: string, runs: string[] | null) {
    const key = runs === null ? "" : `${url}?${runs.slice(0, 64).join(",")}`;
    if (key === this.key) return;
    this.key = key;
    this.source?.close();
    clearTimeout(this.retry);
    if (runs === null) {
      this.source = null;
      return;
    }
    const query = runs.slice(0, 64).map((run) => `run=${encodeURIComponent(run)}`);
    this.open(`${url}${query.length > 0 ? "?" : ""}${query.join("&")}`, 1000);
  }

  /** Opens a stream that was lost at once, for example after somebody has signed in again. */
  wake() {
    if (!this.source || this.source.readyState !== EventSource.CLOSED) return;
    clearTimeout(this.retry);
    this.open(this.source.url, 1000);
  }

  private open(url: string, delay: number) {
    const source = new EventSource(url, { withCredentials: true });
    this.source = source;
    this.set("connecting");
    source.addEventListener("open", () => this.set("live"));
    source.addEventListener("run", (event) => {
      const runs = JSON.parse((event as MessageEvent<string>).data).runs as string[];
      this.send({ kind: "run", runs });
    });
    source.addEventListener("lists", () => this.send({ kind: "lists" }));
    source.addEventListener("error", () => {
      this.set("lost");
      // The browser gives up after an answer that is not a stream, for example 401.
      if (source.readyState !== EventSource.CLOSED || this.source !== source) return;
      this.retry = setTimeout(() => this.open(url, Math.min(delay * 2, 30_000)), delay);
    });
  }
}
