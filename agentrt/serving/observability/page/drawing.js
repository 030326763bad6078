// A DAG as a drawing: a box with two lines of text for each node, and curves between them.

import { svg } from "./dom.js";
import { curve, layout, NODE } from "./layout.js";

let made = 0;

// `scale` returns the scale for a width and a height; `show` is called with the id of the node that
// the pointer or the focus reaches. Returns the drawing, its lines, and its boxes by node id.
export function drawing(nodes, { label, scale, show }) {
  const { places, edges, width, height } = layout(nodes);
  const inside = `inside-${(made += 1)}`;
  const lines = edges.map((edge) => ({ ...edge, line: svg("path", { class: "edge", d: curve(places.get(edge.from), places.get(edge.to)) }) }));
  const boxes = new Map(nodes.map((node) => [node.id, box(node, places.get(node.id), inside, show)]));
  const times = scale(width, height);
  const element = svg(
    "svg",
    {
      viewBox: `-3 -3 ${width + 6} ${height + 6}`,
      width: (width + 6) * times,
      height: (height + 6) * times,
      role: "list",
      "aria-label": label,
    },
    svg("clipPath", { id: inside }, svg("rect", { width: NODE.width - 5, height: NODE.height })),
    ...lines.map(({ line }) => line),
    ...boxes.values(),
  );
  return { element, lines, boxes };
}

function box(node, { x, y }, inside, show) {
  const tell = () => show(node.id);
  const text = (at) => svg("text", { x: 10, y: at, "clip-path": `url(#${inside})` });
  return svg(
    "g",
    { class: "node", "data-node": node.id, role: "listitem", tabindex: -1, transform: `translate(${x} ${y})`, onpointerenter: tell, onfocus: tell, onclick: tell },
    svg("rect", { width: NODE.width, height: NODE.height, rx: 7 }),
    text(15),
    text(28),
  );
}

// A call has the name of the function that makes it.
export function nameOf(node) {
  if (node.kind !== "call") return node.name;
  const parts = node.scope.split("/");
  return parts.length > 1 ? parts[parts.length - 1] : node.name;
}

export const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
