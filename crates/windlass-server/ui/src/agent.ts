// What an agent's steps say: messages in the JSON of their provider, and the tokens of calls.

export type Part =
  | { kind: "text"; text: string }
  | { kind: "thinking"; text: string }
  | { kind: "call"; name: string; input: unknown }
  | { kind: "result"; of: string; value: unknown; failed: boolean }
  | { kind: "other"; value: unknown };
export type Message = { role: string; parts: Part[] };
export type Usage = { input: number; output: number; cached: number };

type Json = Record<string, unknown>;
const isObject = (value: unknown): value is Json =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** The messages of a recorded step: a list of items, or a response of Anthropic or OpenAI. */
export function messagesOf(result: unknown): Message[] {
  if (Array.isArray(result)) return result.flatMap(messageOf);
  if (isObject(result) && Array.isArray(result.output)) return result.output.flatMap(messageOf);
  return messageOf(result);
}

function messageOf(item: unknown): Message[] {
  if (!isObject(item)) return [{ role: "", parts: [{ kind: "other", value: item }] }];
  if (item.role !== undefined || item.content !== undefined) {
    return [{ role: String(item.role ?? "assistant"), parts: partsOf(item.content) }];
  }
  // OpenAI lists calls and their results beside the messages.
  const role = item.type === "function_call_output" ? "tool" : "assistant";
  return [{ role, parts: [partOf(item)] }];
}

function partsOf(content: unknown): Part[] {
  if (typeof content === "string") return [{ kind: "text", text: content }];
  if (Array.isArray(content)) return content.map(partOf);
  return [partOf(content)];
}

function partOf(part: unknown): Part {
  if (!isObject(part)) return { kind: "other", value: part };
  switch (part.type) {
    case "text":
    case "input_text":
    case "output_text":
      return { kind: "text", text: String(part.text ?? "") };
    case "thinking":
      return { kind: "thinking", text: String(part.thinking ?? "") };
    case "tool_use":
      return { kind: "call", name: String(part.name), input: part.input };
    case "function_call":
      return { kind: "call", name: String(part.name), input: part.arguments };
    case "tool_result":
      return {
        kind: "result",
        of: String(part.tool_use_id ?? ""),
        value: part.content,
        failed: part.is_error === true,
      };
    case "function_call_output":
      return { kind: "result", of: String(part.call_id ?? ""), value: part.output, failed: false };
    default:
      return { kind: "other", value: part };
  }
}

/** The tokens of a call, from the result of its step. */
export function usageOf(result: unknown): Usage | undefined {
  const usage = isObject(result) ? result.usage : undefined;
  if (!isObject(usage)) return undefined;
  const number = (name: string) => Number(usage[name] ?? 0) || 0;
  return {
    input: number("input_tokens"),
    output: number("output_tokens"),
    cached: number("cache_read_input_tokens"),
  };
}

export function sumOf(usages: Usage[]): Usage {
  const sum = (name: keyof Usage) => usages.reduce((total, usage) => total + usage[name], 0);
  return { input: sum("input"), output: sum("output"), cached: sum("cached") };
}
