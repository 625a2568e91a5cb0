import { expect, test } from "vitest";
import { compactJson, formatJson, parseJson } from "./json";

test("numbers keep their digits", () => {
  for (const text of ["12345678901234567890", "1.50", "1e400", "0.1", "-0", "7", '{"a":[1.0,2]}']) {
    expect(compactJson(parseJson(text))).toBe(text);
  }
});

test("values are indented", () => {
  expect(formatJson(parseJson('{"a":1.0}'))).toBe('{\n  "a": 1.0\n}');
});
