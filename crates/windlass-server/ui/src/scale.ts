// The time axis of a timeline. Stretches in which nothing runs are folded, so that a wait of a day does not
// press all work into one pixel.

export type Span = { from: number; to: number };
export type Fold = Span & { at: number };
export type Scale = { x: (time: number) => number; folds: Fold[]; from: number; to: number };

/** How much of the axis one fold takes. */
const FOLD = 0.04;
/** A gap is folded if it is longer than this part of all work. */
const LONG = 0.5;

/** A scale from 0 to 1 over spans of work. */
export function scaleOf(spans: Span[], from: number, to: number): Scale {
  const end = Math.max(to, from + 1);
  const sorted = [...spans].sort((a, b) => a.from - b.from);
  const merged: Span[] = [];
  for (const span of sorted) {
    const last = merged.at(-1);
    const clipped = { from: Math.max(span.from, from), to: Math.min(Math.max(span.to, span.from), end) };
    if (last && clipped.from <= last.to) last.to = Math.max(last.to, clipped.to);
    else merged.push(clipped);
  }
  const work = merged.reduce((sum, span) => sum + (span.to - span.from), 0);
  const gaps: Span[] = [];
  let at = from;
  for (const span of merged) {
    if (span.from > at) gaps.push({ from: at, to: span.from });
    at = Math.max(at, span.to);
  }
  if (end > at) gaps.push({ from: at, to: end });
  const folded = gaps
    .filter((gap) => gap.to - gap.from > 5000 && gap.to - gap.from > work * LONG)
    .slice(0, 12);
  const kept = end - from - folded.reduce((sum, gap) => sum + (gap.to - gap.from), 0);
  const unit = (1 - folded.length * FOLD) / Math.max(kept, 1);
  const x = (time: number) => {
    const clamped = Math.min(Math.max(time, from), end);
    let position = clamped - from;
    let share = 0;
    for (const gap of folded) {
      if (clamped >= gap.to) {
        position -= gap.to - gap.from;
        share += FOLD;
      } else if (clamped > gap.from) {
        position -= clamped - gap.from;
        share += (FOLD * (clamped - gap.from)) / (gap.to - gap.from);
      }
    }
    return Math.min(1, position * unit + share);
  };
  return { x, folds: folded.map((gap) => ({ ...gap, at: x(gap.from) + FOLD / 2 })), from, to: end };
}
