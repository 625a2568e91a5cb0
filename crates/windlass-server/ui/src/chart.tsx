// A small line chart over minutes.
import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useZone } from "./app";

type Line = { label: string; values: number[]; color: string };

export function Chart({ from, lines, label }: { from: number; lines: Line[]; label: string }) {
  const ref = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const count = lines[0]?.values.length ?? 0;
  const times = Array.from({ length: count }, (_, index) => from + index * 60);
  const data = [times, ...lines.map((line) => line.values)] as uPlot.AlignedData;
  const latest = useRef(data);
  latest.current = data;
  const [zone] = useZone();
  const shape = lines.map((line) => line.label).join(",");
  // biome-ignore lint/correctness/useExhaustiveDependencies: the chart is made anew only for other lines.
  useEffect(() => {
    const parent = ref.current;
    if (!parent) return;
    const make = () => {
      plot.current?.destroy();
      const style = getComputedStyle(document.documentElement);
      const color = (name: string) => style.getPropertyValue(name).trim();
      const axis = {
        stroke: color("--dim"),
        grid: { stroke: color("--line"), width: 1 },
        ticks: { show: false },
      };
      plot.current = new uPlot(
        {
          width: parent.clientWidth,
          height: 170,
          tzDate: (at) => {
            const date = new Date(at * 1000);
            return zone === "utc" ? uPlot.tzDate(date, "Etc/UTC") : date;
          },
          cursor: { drag: { x: false, y: false } },
          legend: { live: false },
          scales: { y: { range: (_, __, max) => [0, Math.max(4, max * 1.1)] } },
          axes: [axis, { ...axis, size: 40 }],
          series: [
            {},
            ...lines.map((line) => ({
              label: line.label,
              stroke: color(line.color),
              width: 2,
              points: { show: false },
            })),
          ],
        },
        latest.current,
        parent,
      );
    };
    make();
    const resize = new ResizeObserver(() =>
      plot.current?.setSize({ width: parent.clientWidth, height: 170 }),
    );
    resize.observe(parent);
    const theme = new MutationObserver(make);
    theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => {
      resize.disconnect();
      theme.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, zone]);
  useEffect(() => {
    plot.current?.setData(data);
  });
  return <div ref={ref} className="chart" role="img" aria-label={label} />;
}
