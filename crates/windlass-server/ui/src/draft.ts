// Changes of a definition that are not saved yet. The tab keeps them, so that another view, a reload or the
// end of a session does not lose them.
import { compactJson, parseJson } from "./json";

/** What the tab keeps of one definition: the text that was edited, and the saved text that it began with. */
export type Kept = { base: string; text: string };

type Store = Pick<Storage, "getItem" | "setItem" | "removeItem">;

const name = (type: string) => `windlass.draft.${type}`;

/** The text of a definition, as it is compared and sent. Numbers keep their digits. */
export const textOf = (definition: unknown): string => compactJson(definition);

/** Keeps an edited text, or forgets it when it is what the server has. */
export function keep(type: string, kept: Kept, store: Store) {
  try {
    if (kept.base === kept.text) store.removeItem(name(type));
    else store.setItem(name(type), JSON.stringify(kept));
  } catch {
    // Without storage, the page still asks before it is closed.
  }
}

/** The changes that were not saved, if there are any. */
export function kept<T>(type: string, store: Store): { base: string; definition: T } | undefined {
  try {
    const found = JSON.parse(store.getItem(name(type)) ?? "null") as Kept | null;
    if (found === null) return undefined;
    return { base: found.base, definition: parseJson(found.text) as T };
  } catch {
    return undefined;
  }
}
