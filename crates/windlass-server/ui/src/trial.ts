// A trial of an expression: what is sent, and the place of a problem in the text.
import { parseJson } from "./json";

export type TrialInput = {
  expression: string;
  type?: string;
  condition?: boolean;
  /** JSON texts, sent as they were typed so that numbers keep their digits. Empty ones are left out. */
  entity: string;
  actor: string;
  context: string;
};

/** The body of `POST /expressions/evaluate`, or the name of the text that is not JSON. */
export function trialBody(input: TrialInput): { body: string } | { invalid: string; error: unknown } {
  const members = [`"expression":${JSON.stringify(input.expression)}`];
  if (input.type !== undefined) members.push(`"type":${JSON.stringify(input.type)}`);
  if (input.condition) members.push('"condition":true');
  for (const name of ["entity", "actor", "context"] as const) {
    const text = input[name].trim();
    if (text === "") continue;
    try {
      parseJson(text);
    } catch (error) {
      return { invalid: name, error };
    }
    members.push(`"${name}":${text}`);
  }
  return { body: `{${members.join(",")}}` };
}

/** The line below an expression that marks a place. The server counts bytes of UTF-8. */
export function underline(text: string, span: { start: number; end: number }): string {
  const bytes = new TextEncoder().encode(text);
  const length = (from: number, to: number) => [...new TextDecoder().decode(bytes.slice(from, to))].length;
  const start = length(0, Number(span.start));
  return " ".repeat(start) + "^".repeat(Math.max(1, length(Number(span.start), Number(span.end))));
}
