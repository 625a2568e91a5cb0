// A window of pages over a long list: pages far away are dropped, and come back when somebody scrolls there.
// Rows keep their places, so that dropping a page does not move what is shown.

/** The cursor of the first page. */
export const FIRST = "";
/** The most pages whose places are known. */
const PAGES_MAX = 5000;

/** Where the pages that were read begin, and which page is before which. */
export class PageIndex {
  private starts = new Map<string, number>([[FIRST, 0]]);
  private before = new Map<string, string>();

  /** Notes a page that was read, and the cursor of the page after it. */
  note(cursor: string, rows: number, next: string | undefined) {
    if (next === undefined || next === cursor) return;
    // The newest note is the last one, so that the oldest is forgotten first.
    this.starts.delete(next);
    this.starts.set(next, this.start(cursor) + rows);
    this.before.set(next, cursor);
    if (this.starts.size > PAGES_MAX) this.forgetOldest();
  }

  /** The number of rows before a page. */
  start(cursor: string): number {
    return this.starts.get(cursor) ?? 0;
  }

  /** The page before a page; nothing before the first one. */
  previous(cursor: string): string | undefined {
    return cursor === FIRST ? undefined : (this.before.get(cursor) ?? FIRST);
  }

  /** The page that was read and has this row, or the last one that begins before it. */
  pageOf(row: number): string {
    let found = FIRST;
    for (const [cursor, start] of this.starts) if (start <= row && start >= this.start(found)) found = cursor;
    return found;
  }

  // Cursors change whenever new rows come before them, so old ones are left over.
  private forgetOldest() {
    for (const cursor of this.starts.keys()) {
      if (cursor === FIRST) continue;
      this.starts.delete(cursor);
      this.before.delete(cursor);
      return;
    }
  }
}

/** What to read for the rows that are visible: the page before or after the window, or another place. */
export function wanted(
  window: { start: number; rows: number; more: boolean },
  visible: { first: number; last: number },
  near: number,
): "previous" | "next" | "jump" | undefined {
  const end = window.start + window.rows;
  if (visible.last < window.start - near * 10) return "jump";
  if (window.start > 0 && visible.first < window.start + near) return "previous";
  if (window.more && visible.last >= end - near) return "next";
  return undefined;
}
