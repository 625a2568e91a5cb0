// The differences of two JSON values, one row for each changed place.
import { isNumber } from "./json";

export type Change = { path: string; before?: unknown; after?: unknown };

/** The most changes that are listed; a reader of more would rather read both values. */
export const CHANGES_MAX = 500;

export function diffOf(before: unknown, after: unknown): Change[] {
  const changes: Change[] = [];
  walk(before, after, "", changes);
  return changes;
}

function walk(before: unknown, after: unknown, path: string, changes: Change[]) {
  if (changes.length >= CHANGES_MAX) return;
  if (isBranch(before) && isBranch(after) && Array.isArray(before) === Array.isArray(after)) {
    const [old, now] = [before as Record<string, unknown>, after as Record<string, unknown>];
    for (const key of new Set([...Object.keys(old), ...Object.keys(now)])) {
      walk(old[key], now[key], step(path, key, Array.isArray(before)), changes);
    }
    return;
  }
  if (same(before, after)) return;
  const change: Change = { path: path === "" ? "(the value)" : path };
  if (before !== undefined) change.before = before;
  if (after !== undefined) change.after = after;
  changes.push(change);
}

function step(path: string, key: string, isList: boolean): string {
  if (isList) return `${path}[${key}]`;
  const name = /^[A-Za-z_][\w-]*$/.test(key) ? key : JSON.stringify(key);
  return path === "" ? name : `${path}.${name}`;
}

function isBranch(value: unknown): boolean {
  return typeof value === "object" && value !== null && !isNumber(value);
}

// Numbers that keep their digits are objects.
function same(left: unknown, right: unknown): boolean {
  if (isNumber(left) && isNumber(right)) return String(left) === String(right);
  return left === right;
}
