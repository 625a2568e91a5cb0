// Hints of the server make queries read again. A hidden tab closes its part and asks nothing.
import type { QueryClient } from "@tanstack/react-query";
import { apiBase } from "./api/client";
import { Refresher } from "./refresh";
import { type Followed, type FromTab, type Pill, Stream, type ToTab } from "./stream";

/** A busy server hints up to ten times a second, and each hint reads all lists that are shown. */
const LISTS_PAUSE_MS = 1000;
/** What one open run shows costs less and is watched closely. */
const RUN_PAUSE_MS = 200;

/** What was read this shortly before the stream was open at first is not read again. */
const FRESH_MS = 1000;

type Listener = (state: Pill) => void;

export class Live {
  private followed = new Map<object, Followed[]>();
  private paused = false;
  private isFirst = true;
  private listeners = new Set<Listener>();
  private post: (message: FromTab) => void;
  private lists: Refresher<string[]>;
  private runs: Refresher<string[]>;
  state: Pill = "connecting";

  constructor(private readonly queries: QueryClient) {
    // A read in progress goes on: cancelling it at every hint could mean that it never ends.
    const reader = {
      isReading: (queryKey: string[]) => queries.isFetching({ queryKey, type: "active" }) > 0,
      read: (queryKey: string[]) => queries.invalidateQueries({ queryKey }, { cancelRefetch: false }),
    };
    this.lists = new Refresher(reader, LISTS_PAUSE_MS);
    this.runs = new Refresher(reader, RUN_PAUSE_MS);
    const receive = (message: ToTab) => this.receive(message);
    if (typeof SharedWorker === "undefined") {
      const stream = new Stream(receive);
      this.post = ({ url, runs, wake }) => {
        stream.follow(url, runs);
        if (wake) stream.wake();
      };
    } else {
      const worker = new SharedWorker(new URL("./live.worker.ts", import.meta.url), { type: "module" });
      worker.port.onmessage = ({ data }: MessageEvent<ToTab>) => receive(data);
      this.post = (message) => worker.port.postMessage(message);
    }
    document.addEventListener("visibilitychange", () => this.update());
    window.addEventListener("pagehide", () => this.post({ url: `${apiBase}/live`, runs: null }));
  }

  /** Opens the stream for a page that follows no run. */
  connect() {
    this.update();
  }

  /** What one part of the page follows; nothing with an empty list. */
  follow(owner: object, runs: Followed[]) {
    if (runs.length === 0) this.followed.delete(owner);
    else this.followed.set(owner, runs);
    this.update();
  }

  pause(paused: boolean) {
    this.paused = paused;
    this.update();
    if (!paused) this.queries.invalidateQueries();
  }

  /** Connects again now, and not only after the next delay. */
  wake() {
    this.update(true);
  }

  subscribe = (listener: Listener) => {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  };

  private update(wake = false) {
    const off = this.paused || document.hidden;
    this.post({
      url: `${apiBase}/live`,
      runs: off ? null : [...new Set([...this.followed.values()].flat())],
      wake,
    });
    if (this.paused) this.set("paused");
  }

  private set(state: Pill) {
    this.state = state;
    for (const listener of this.listeners) listener(state);
  }

  private receive(message: ToTab) {
    if (this.paused || document.hidden) return;
    if (message.kind === "state") {
      // Whatever happened while the stream was down has to be read.
      if (message.state === "live" && this.state !== "live") {
        const until = Date.now() - FRESH_MS;
        const isOld = (at: number) => at > 0 && at < until;
        if (!this.isFirst) this.queries.invalidateQueries();
        else this.queries.invalidateQueries({ predicate: ({ state }) => isOld(state.dataUpdatedAt) });
      }
      this.isFirst = this.isFirst && message.state === "connecting";
      // A stream ends when its credential does; then the page leads to the sign-in.
      if (message.state === "lost") this.queries.invalidateQueries({ queryKey: ["whoami"] });
      this.set(message.state);
    } else if (message.kind === "run") {
      for (const run of message.runs) this.runs.ask(["run", run]);
      // The head of a run is read by its name, because its page knows no key at first.
      this.runs.ask(["instance"]);
    } else {
      this.lists.ask(["lists"]);
      // A new generation has another key, so no hint names it.
      this.lists.ask(["instance"]);
    }
  }
}
