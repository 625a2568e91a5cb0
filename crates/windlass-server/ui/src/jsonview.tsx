// A lazy tree of a JSON value. Every value is text, and numbers keep their digits.
import { useState } from "react";
import { compactJson, formatJson, isNumber } from "./json";
import { Copy } from "./parts";

const CHILDREN_MAX = 100;
const TEXT_MAX = 1024 * 1024;

export function JsonView({ value, label }: { value: unknown; label: string }) {
  const text = formatJson(value);
  return (
    <section className="json" aria-label={label}>
      <div className="json-head">
        <span className="dim">{label}</span>
        <Copy text={text} label="Copy" />
      </div>
      {text.length > TEXT_MAX ? <pre>{text}</pre> : <Node value={value} open />}
    </section>
  );
}

function Node({ name, value, open = false }: { name?: string; value: unknown; open?: boolean }) {
  const [shown, setShown] = useState(open);
  const [max, setMax] = useState(CHILDREN_MAX);
  const key = name === undefined ? null : <span className="j-key">{name}: </span>;
  if (value === null || typeof value !== "object" || isNumber(value)) {
    return (
      <div className="j-row">
        {key}
        <span className={`j-${isNumber(value) ? "number" : typeof value}`}>{compactJson(value)}</span>
      </div>
    );
  }
  const entries = Object.entries(value);
  const [start, end] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (entries.length === 0) {
    return (
      <div className="j-row">
        {key}
        {start + end}
      </div>
    );
  }
  return (
    <div>
      <button type="button" className="j-toggle" aria-expanded={shown} onClick={() => setShown(!shown)}>
        <span aria-hidden="true">{shown ? "▾" : "▸"}</span> {key}
        {shown ? start : `${start} ${entries.length} ${end}`}
      </button>
      {shown && (
        <div className="j-children">
          {entries.slice(0, max).map(([child, inner]) => (
            <Node key={child} name={child} value={inner} open={entries.length < 20} />
          ))}
          {entries.length > max && (
            <button type="button" className="plain" onClick={() => setMax(max + CHILDREN_MAX * 10)}>
              {entries.length - max} more
            </button>
          )}
          <div className="j-row">{end}</div>
        </div>
      )}
    </div>
  );
}
