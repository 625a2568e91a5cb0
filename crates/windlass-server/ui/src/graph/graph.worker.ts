// Layered layout of a graph, outside the thread of the page.
import { coordGreedy, decrossTwoLayer, graph, layeringLongestPath, sugiyama } from "d3-dag";
import { type Answer, type Ask, NODE_HEIGHT, NODE_WIDTH } from "./layout";

const operator = sugiyama()
  .nodeSize([NODE_WIDTH, NODE_HEIGHT])
  .gap([22, 34])
  .layering(layeringLongestPath())
  .decross(decrossTwoLayer())
  .coord(coordGreedy());

self.onmessage = ({ data }: MessageEvent<Ask>) => {
  const answer: Answer = { id: data.id, places: {}, lines: [], width: 0, height: 0 };
  try {
    const dag = graph<string, number>();
    const nodes = new Map(data.nodes.map((id) => [id, dag.node(id)]));
    data.edges.forEach(([from, to], index) => {
      const [source, target] = [nodes.get(from), nodes.get(to)];
      if (source && target) dag.link(source, target, index);
    });
    const { width, height } = operator(dag);
    for (const node of dag.nodes()) answer.places[node.data] = { x: node.x, y: node.y };
    for (const link of dag.links()) answer.lines[link.data] = link.points;
    answer.width = width;
    answer.height = height;
  } catch (error) {
    answer.error = error instanceof Error ? error.message : String(error);
  }
  self.postMessage(answer);
};
