// Draws a graph: arrows as one SVG, nodes as buttons, so that all of them can be reached by keyboard.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Failed } from "../parts";
import { layout, NODE_HEIGHT, NODE_WIDTH } from "./layout";
import type { Graph, Node } from "./model";

const zooms = [0.5, 0.65, 0.8, 1, 1.25];

export function GraphView({
  graph,
  label,
  open,
}: {
  graph: Graph;
  label: string;
  open?: (node: Node) => void;
}) {
  const [zoom, setZoom] = useState(3);
  const shape = JSON.stringify([
    graph.nodes.map((node) => node.id),
    graph.edges.map((edge) => [edge.from, edge.to]),
  ]);
  const placed = useQuery({
    queryKey: ["layout", shape],
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 60_000,
    // The places of the shape before stay until the new ones are known.
    placeholderData: (before) => before,
    queryFn: () =>
      layout(
        graph.nodes.map((node) => node.id),
        graph.edges.map((edge) => [edge.from, edge.to]),
      ),
  });
  if (placed.error) return <Failed error={placed.error} />;
  if (!placed.data) return <p className="dim loading">Drawing…</p>;
  const { places, lines, width, height } = placed.data;
  const scale = zooms[zoom];
  return (
    <>
      <div className="actions graph-zoom">
        <button
          type="button"
          aria-label="Smaller"
          disabled={zoom === 0}
          onClick={() => setZoom((at) => Math.max(0, at - 1))}
        >
          −
        </button>
        <button
          type="button"
          aria-label="Larger"
          disabled={zoom === zooms.length - 1}
          onClick={() => setZoom((at) => Math.min(zooms.length - 1, at + 1))}
        >
          +
        </button>
        <span className="dim small">
          {graph.nodes.length} nodes{graph.cut && "; more are not drawn"}
        </span>
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard. */}
      <section className="graph card" aria-label={label} tabIndex={0}>
        <div style={{ width: width * scale, height: height * scale }}>
          <div className="graph-inner" style={{ width, height, transform: `scale(${scale})` }}>
            <svg width={width} height={height} aria-hidden="true">
              <defs>
                <marker
                  id="arrow"
                  viewBox="0 0 8 8"
                  refX="7"
                  refY="4"
                  markerWidth="7"
                  markerHeight="7"
                  orient="auto"
                >
                  <path d="M0 0 L8 4 L0 8 z" className="arrow" />
                </marker>
              </defs>
              {graph.edges.map((edge, index) => {
                const points = lines[index];
                if (!points) return null;
                return (
                  <path
                    key={`${edge.from} ${edge.to} ${edge.label ?? ""}`}
                    d={path(points)}
                    className={edge.planned ? "planned" : ""}
                    markerEnd="url(#arrow)"
                  />
                );
              })}
              {graph.edges.map((edge, index) => {
                const points = lines[index];
                if (!points || !edge.label) return null;
                const [x, y] = middle(points);
                return (
                  <text key={`${edge.from} ${edge.to} ${edge.label}`} x={x} y={y} textAnchor="middle">
                    {edge.label.length > 24 ? `${edge.label.slice(0, 23)}…` : edge.label}
                  </text>
                );
              })}
            </svg>
            {graph.nodes.map((node) => {
              const place = places[node.id];
              if (!place) return null;
              return (
                <button
                  key={node.id}
                  type="button"
                  className={`node n-${node.state}${node.planned ? " planned" : ""}`}
                  title={`${node.label} · ${node.hint} · ${node.state}`}
                  disabled={!open}
                  style={{
                    left: place.x - NODE_WIDTH / 2,
                    top: place.y - NODE_HEIGHT / 2,
                    width: NODE_WIDTH,
                    height: NODE_HEIGHT,
                  }}
                  onClick={() => open?.(node)}
                >
                  <span className="clip">{node.label}</span>
                  <span className="clip small">
                    {node.hint} <span className="visually-hidden">{node.state}</span>
                  </span>
                </button>
              );
            })}
          </div>
        </div>
      </section>
    </>
  );
}

// Arrows end at the edge of their node: the layout gives centres.
function path(points: [number, number][]): string {
  const [first, last] = [points[0], points[points.length - 1]];
  const half = NODE_HEIGHT / 2;
  const inner = points.slice(1, -1);
  const all = [[first[0], first[1] + half], ...inner, [last[0], last[1] - half - 2]];
  let text = `M${all[0][0]} ${all[0][1]}`;
  for (let index = 1; index < all.length; index += 1) {
    const [[x0, y0], [x1, y1]] = [all[index - 1], all[index]];
    const bend = (y0 + y1) / 2;
    text += ` C${x0} ${bend} ${x1} ${bend} ${x1} ${y1}`;
  }
  return text;
}

function middle(points: [number, number][]): [number, number] {
  const [first, last] = [points[0], points[points.length - 1]];
  // A long arrow bends around other nodes: its label stands on its way.
  if (points.length > 2) {
    const [x, y] = points[Math.floor(points.length / 2)];
    return [x, y + 4];
  }
  return [(first[0] + last[0]) / 2, (first[1] + last[1]) / 2 + 4];
}
