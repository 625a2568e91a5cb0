// A list that draws only what is visible, with rows of different heights.
import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, type Ref, useEffect, useImperativeHandle, useRef } from "react";

export type ListHandle = { show: (index: number) => void };

type Props<T> = {
  items: T[];
  keyOf: (item: T) => string;
  row: (item: T) => ReactNode;
  /** The usual height of a row. */
  height: number;
  label: string;
  className?: string;
  more?: boolean;
  next?: () => void;
  ref?: Ref<ListHandle>;
};

export function VirtualList<T>(props: Props<T>) {
  const { items, keyOf, row, height, label, className = "", more = false, next, ref } = props;
  const scroll = useRef<HTMLDivElement>(null);
  const list = useVirtualizer({
    count: items.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => height,
    getItemKey: (index) => keyOf(items[index]),
    overscan: 12,
  });
  useImperativeHandle(ref, () => ({ show: (index) => list.scrollToIndex(index, { align: "center" }) }));
  const visible = list.getVirtualItems();
  const last = visible.at(-1)?.index ?? -1;
  useEffect(() => {
    if (more && last >= items.length - 20) next?.();
  }, [more, last, items.length, next]);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard.
    <section className={`card virtual ${className}`} ref={scroll} tabIndex={0} aria-label={label}>
      <ol style={{ height: list.getTotalSize() }}>
        {visible.map((item) => (
          <li
            key={item.key}
            data-index={item.index}
            ref={list.measureElement}
            style={{ transform: `translateY(${item.start}px)` }}
          >
            {row(items[item.index])}
          </li>
        ))}
      </ol>
    </section>
  );
}
