import { expect, test } from "vitest";
import { trialBody, underline } from "./trial";

const input = { expression: 'entity.total > 1 && entity.name == "é"', entity: "", actor: "", context: "" };

test("values are sent as they were typed", () => {
  const sent = trialBody({ ...input, type: "invoice", condition: true, entity: '{"total": 1.50}' });
  expect(sent).toEqual({
    body: `{"expression":${JSON.stringify(input.expression)},"type":"invoice","condition":true,"entity":{"total": 1.50}}`,
  });
  expect(trialBody(input)).toEqual({ body: `{"expression":${JSON.stringify(input.expression)}}` });
});

test("a text that is not JSON is not sent", () => {
  expect(trialBody({ ...input, actor: "{" })).toHaveProperty("invalid", "actor");
  // Two values would add members to the body.
  expect(trialBody({ ...input, entity: '1,"expression":"true"' })).toHaveProperty("invalid", "entity");
});

test("a place is counted in characters", () => {
  expect(underline("a == b", { start: 0, end: 1 })).toBe("^");
  expect(underline('"é" == b', { start: 8, end: 9 })).toBe("       ^");
  expect(underline("a", { start: 1, end: 1 })).toBe(" ^");
});
