import { expect, test } from "vitest";
import { messagesOf, sumOf, usageOf } from "./agent";

test("messages of both providers", () => {
  const anthropic = {
    role: "assistant",
    content: [
      { type: "text", text: "Let me look." },
      { type: "tool_use", id: "t1", name: "weather", input: { city: "Oslo" } },
    ],
  };
  expect(messagesOf(anthropic)).toEqual([
    {
      role: "assistant",
      parts: [
        { kind: "text", text: "Let me look." },
        { kind: "call", name: "weather", input: { city: "Oslo" } },
      ],
    },
  ]);
  const openai = {
    output: [
      { type: "message", role: "assistant", content: [{ type: "output_text", text: "Hi" }] },
      { type: "function_call", name: "weather", arguments: "{}", call_id: "c1" },
    ],
  };
  expect(messagesOf(openai).map((one) => one.parts[0].kind)).toEqual(["text", "call"]);
  expect(messagesOf([{ role: "user", content: "Hello" }])).toEqual([
    { role: "user", parts: [{ kind: "text", text: "Hello" }] },
  ]);
  const result = [{ type: "tool_result", tool_use_id: "t1", content: "rain", is_error: true }];
  expect(messagesOf([{ role: "user", content: result }])[0].parts).toEqual([
    { kind: "result", of: "t1", value: "rain", failed: true },
  ]);
});

test("what nobody knows is kept", () => {
  expect(messagesOf(7)).toEqual([{ role: "", parts: [{ kind: "other", value: 7 }] }]);
  expect(messagesOf({ role: "user", content: [{ type: "image" }] })[0].parts[0].kind).toBe("other");
});

test("tokens", () => {
  const usage = usageOf({ usage: { input_tokens: 17, output_tokens: 20, cache_read_input_tokens: 5 } });
  expect(usage).toEqual({ input: 17, output: 20, cached: 5 });
  expect(usageOf(null)).toBeUndefined();
  expect(sumOf(usage ? [usage, usage] : [])).toEqual({ input: 34, output: 40, cached: 10 });
});
