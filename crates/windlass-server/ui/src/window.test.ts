import { expect, test } from "vitest";
import { FIRST, PageIndex, wanted } from "./window";

function read(pages: number): PageIndex {
  const index = new PageIndex();
  for (let page = 0; page < pages; page += 1)
    index.note(page === 0 ? FIRST : `c${page}`, 100, `c${page + 1}`);
  return index;
}

test("a dropped page is found again", () => {
  const index = read(40);
  expect([FIRST, "c1", "c40"].map((cursor) => index.start(cursor))).toEqual([0, 100, 4000]);
  expect(index.previous("c40")).toBe("c39");
  expect(index.previous("c1")).toBe(FIRST);
  expect(index.previous(FIRST)).toBeUndefined();
  expect([0, 99, 100, 2150, 9999].map((row) => index.pageOf(row))).toEqual([
    FIRST,
    FIRST,
    "c1",
    "c21",
    "c40",
  ]);
});

test("the last page has no next one", () => {
  const index = new PageIndex();
  index.note(FIRST, 7, undefined);
  expect(index.pageOf(1000)).toBe(FIRST);
});

test("a page that is not known follows the first one", () => {
  expect(read(2).previous("other")).toBe(FIRST);
});

test("only so many places are known, and the first page always", () => {
  const index = read(6000);
  expect([index.start("c6000"), index.start("c1"), index.pageOf(0)]).toEqual([600_000, 0, FIRST]);
});

test("the rows near an end of the window are wanted", () => {
  const window = { start: 2000, rows: 800, more: true };
  const cases: [number, number, ReturnType<typeof wanted>][] = [
    [2400, 2420, undefined],
    [2780, 2795, "next"],
    [2005, 2025, "previous"],
    [1980, 2000, "previous"],
    [0, 20, "jump"],
  ];
  for (const [first, last, expect_] of cases) expect(wanted(window, { first, last }, 10)).toBe(expect_);
  expect(wanted({ start: 0, rows: 50, more: false }, { first: 0, last: 49 }, 10)).toBeUndefined();
});
