// Reads again what hints say has changed: at the first hint at once, then with a pause between two reads, and
// never twice at the same time. A hint that comes meanwhile leads to one more read.

/** The part of a query client that is needed. */
export type Reader<K> = {
  /** Whether something of the key is being read. */
  isReading: (key: K) => boolean;
  /** Reads everything that is shown of a key. Completes when it has been read; does not stop other reads. */
  read: (key: K) => Promise<unknown>;
};

type State = { busy: boolean; again: boolean; last: number; timer?: ReturnType<typeof setTimeout> };

export class Refresher<K> {
  private states = new Map<string, State>();

  constructor(
    private readonly reader: Reader<K>,
    private readonly pauseMs: number,
  ) {}

  ask(key: K) {
    const name = JSON.stringify(key);
    const state = this.states.get(name) ?? { busy: false, again: false, last: Number.NEGATIVE_INFINITY };
    this.states.set(name, state);
    state.again = true;
    this.go(name, key, state);
  }

  private go(name: string, key: K, state: State) {
    if (state.busy || state.timer !== undefined || !state.again) return;
    const wait = state.last + this.pauseMs - Date.now();
    if (wait > 0) {
      state.timer = setTimeout(() => {
        state.timer = undefined;
        this.go(name, key, state);
      }, wait);
      return;
    }
    // A read that began before this hint may not see what the hint is about.
    state.again = this.reader.isReading(key);
    state.busy = true;
    state.last = Date.now();
    const done = () => {
      state.busy = false;
      if (state.again) this.go(name, key, state);
      // Runs come and go; a key without work needs no state after its pause.
      else setTimeout(() => this.forget(name, state), this.pauseMs);
    };
    this.reader.read(key).then(done, done);
  }

  private forget(name: string, state: State) {
    const idle = !state.busy && !state.again && state.timer === undefined;
    if (idle && Date.now() - state.last >= this.pauseMs && this.states.get(name) === state)
      this.states.delete(name);
  }
}
