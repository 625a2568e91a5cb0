import { CHANGES_MAX, type Change, diffOf } from "./diff";
import { compactJson } from "./json";

export function DiffView({ before, after, label }: { before: unknown; after: unknown; label: string }) {
  return <ChangesView changes={diffOf(before, after)} label={label} />;
}

export function ChangesView({ changes, label }: { changes: Change[]; label: string }) {
  if (changes.length === 0) return <p className="dim small">{label}: nothing has changed.</p>;
  return (
    <section className="diff" aria-label={label}>
      <p className="dim small">{label}</p>
      <ul>
        {changes.map((change) => (
          <li key={change.path}>
            <span className="mono">{change.path}</span>
            {change.before !== undefined && <del className="mono">{compactJson(change.before)}</del>}
            {change.after !== undefined && <ins className="mono">{compactJson(change.after)}</ins>}
          </li>
        ))}
      </ul>
      {changes.length === CHANGES_MAX && (
        <p className="dim small">Only the first {CHANGES_MAX} changes are shown.</p>
      )}
    </section>
  );
}
