import { expect, test } from "vitest";
import { bulkFilter, readLabel } from "./bulk";

test("labels are read as the server reads them", () => {
  expect(readLabel("team:red")).toEqual(["team", "red"]);
  expect(readLabel("url:http://a")).toEqual(["url", "http://a"]);
  expect(readLabel("team:")).toEqual(["team", ""]);
  for (const text of ["team", ":red", "", "a:\0"]) expect(readLabel(text)).toBeUndefined();
});

test("an act has the filter of the list", () => {
  const search = { workflow: "order", status: ["errored"], label: "team:red", id: "o-", error: "Broken" };
  expect(bulkFilter({ ...search, from: "2026-03-01T12:00:00Z", model: "steps", roots: true })).toEqual({
    filter: {
      workflow: "order",
      status: "errored",
      labels: { team: "red" },
      idPrefix: "o-",
      errorCode: "Broken",
      createdFrom: "2026-03-01T12:00:00Z",
      model: "steps",
      rootsOnly: true,
    },
  });
  expect(bulkFilter({})).toEqual({ filter: { labels: {}, rootsOnly: false } });
});

test("a filter that an act cannot have allows no act", () => {
  for (const search of [{ label: "team" }, { label: ":red" }, { status: ["active", "errored"] }])
    expect(bulkFilter(search)).toHaveProperty("problem");
});
