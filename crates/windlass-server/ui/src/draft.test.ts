import { expect, test } from "vitest";
import { keep, kept, textOf } from "./draft";
import { parseJson } from "./json";

function memory() {
  const rows = new Map<string, string>();
  return {
    rows,
    getItem: (key: string) => rows.get(key) ?? null,
    setItem: (key: string, value: string) => void rows.set(key, value),
    removeItem: (key: string) => void rows.delete(key),
  };
}

const text = '{"slots":{"review":{"limit":1.50,"max":12345678901234567890}}}';

test("the text of a draft has the digits that were typed", () => {
  expect(textOf(parseJson(text))).toBe(text);
});

test("unsaved changes come back with their digits", () => {
  const store = memory();
  keep("invoice", { base: '{"slots":{}}', text }, store);
  const found = kept("invoice", store);
  expect(found?.base).toBe('{"slots":{}}');
  expect(textOf(found?.definition)).toBe(text);
  expect(kept("order", store)).toBeUndefined();
});

test("a saved draft is forgotten", () => {
  const store = memory();
  keep("invoice", { base: "{}", text }, store);
  keep("invoice", { base: text, text }, store);
  expect(kept("invoice", store)).toBeUndefined();
  expect(store.rows.size).toBe(0);
});

test("what cannot be read is no draft", () => {
  const store = memory();
  store.setItem("windlass.draft.invoice", "{");
  expect(kept("invoice", store)).toBeUndefined();
});
