import { describe, expect, it } from "vitest";
import { CHANGES_MAX, diffOf } from "./diff";
import { parseJson } from "./json";

describe("diffOf", () => {
  it("lists each changed place", () => {
    expect(diffOf({ a: 1, b: { c: [1, 2] } }, { a: 1, b: { c: [1, 3, 4] }, "d e": null })).toEqual([
      { path: "b.c[1]", before: 2, after: 3 },
      { path: "b.c[2]", after: 4 },
      { path: '"d e"', after: null },
    ]);
    expect(diffOf([1], { a: 1 })).toEqual([{ path: "(the value)", before: [1], after: { a: 1 } }]);
    expect(diffOf(null, null)).toEqual([]);
  });
  it("compares all digits of a number", () => {
    const [left, right] = ["12345678901234567890", "12345678901234567891"].map(parseJson);
    expect(diffOf(left, left)).toEqual([]);
    expect(diffOf(left, right)).toHaveLength(1);
  });
  it("has a limit", () => {
    const list = Array.from({ length: CHANGES_MAX * 2 }, (_, index) => index);
    expect(diffOf([], list)).toHaveLength(CHANGES_MAX);
  });
});
