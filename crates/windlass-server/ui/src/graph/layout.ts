// Asks the worker for the places of nodes.

export type Ask = { id: number; nodes: string[]; edges: [string, string][] };
export type Place = { x: number; y: number };
export type Answer = {
  id: number;
  places: Record<string, Place>;
  lines: [number, number][][];
  width: number;
  height: number;
  error?: string;
};

export const NODE_WIDTH = 190;
export const NODE_HEIGHT = 46;

let worker: Worker | undefined;
let next = 0;
const waiting = new Map<number, { resolve: (answer: Answer) => void; reject: (error: Error) => void }>();

export function layout(nodes: string[], edges: [string, string][]): Promise<Answer> {
  if (!worker) {
    worker = new Worker(new URL("./graph.worker.ts", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }: MessageEvent<Answer>) => {
      const one = waiting.get(data.id);
      waiting.delete(data.id);
      if (data.error) one?.reject(new Error(data.error));
      else one?.resolve(data);
    };
    worker.onerror = () => {
      for (const one of waiting.values()) one.reject(new Error("the layout worker did not start"));
      waiting.clear();
      worker = undefined;
    };
  }
  next += 1;
  const ask: Ask = { id: next, nodes, edges };
  const answer = new Promise<Answer>((resolve, reject) => waiting.set(ask.id, { resolve, reject }));
  worker.postMessage(ask);
  return answer;
}
