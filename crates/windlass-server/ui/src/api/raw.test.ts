import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { parseJson } from "../json";

const sent: { url: string; body?: string }[] = [];

beforeEach(() => {
  sent.length = 0;
  vi.stubGlobal("document", { querySelector: () => null, baseURI: "http://localhost/ui/" });
  vi.stubGlobal("fetch", async (input: Request | string, init?: RequestInit) => {
    const request = new Request(input, init);
    const body = await request.text();
    sent.push({ url: request.url, body });
    return new Response('{"total":1.50}', { headers: { "content-type": "application/json" } });
  });
});
afterEach(() => vi.unstubAllGlobals());

test("a body of a route without types keeps its digits", async () => {
  const { call } = await import("./raw");
  const answer = await call("/contracts/invoice/draft", {
    method: "PUT",
    body: { slots: parseJson('{"a":{"limit":1.50,"max":12345678901234567890}}') },
  });
  expect(sent[0].body).toBe('{"slots":{"a":{"limit":1.50,"max":12345678901234567890}}}');
  expect(answer).toEqual(parseJson('{"total":1.50}'));
});

test("a body of a typed route keeps its digits", async () => {
  const { api, ok } = await import("./client");
  const body = { input: parseJson("1.50") };
  await ok(
    api.POST("/workflows/{workflowName}/instances", { params: { path: { workflowName: "a" } }, body }),
  );
  expect(sent[0].body).toBe('{"input":1.50}');
});

test("a read that nobody waits for is cancelled", async () => {
  const { call } = await import("./raw");
  vi.stubGlobal("fetch", (_: string, init: RequestInit) => Promise.reject(init.signal?.reason));
  const gone = new AbortController();
  gone.abort(new Error("the view is closed"));
  await expect(call("/contracts/types", { signal: gone.signal })).rejects.toThrow("the view is closed");
});
