// The layout of a program's graph: the nodes are in layers from top to bottom.
//
// A node's layer is the length of the longest path from a root. The parents of a node have smaller
// ids and never change, so a single pass places all nodes, and a growing graph keeps its shape.

export const NODE = { width: 134, height: 36, across: 14, down: 26 };

export function layout(nodes) {
  const layerOf = new Map();
  const layers = [];
  for (const node of nodes) {
    const layer = 1 + Math.max(-1, ...node.parents.map((parent) => layerOf.get(parent) ?? -1));
    layerOf.set(node.id, layer);
    (layers[layer] ??= []).push(node);
  }
  const places = new Map();
  layers.forEach((layer, index) => placeLayer(layer, index, places));
  return { places, edges: edges(nodes, places), ...measure(places, layers.length) };
}

// The ideal place of a node is the middle of its parents. Nodes that would overlap are moved apart,
// and then the whole layer is moved, so that its nodes are near their ideal places on average.
function placeLayer(layer, index, places) {
  const step = NODE.width + NODE.across;
  const wishes = layer.map((node) => {
    const above = node.parents.map((parent) => places.get(parent)?.x).filter((x) => x !== undefined);
    return { node, x: above.length ? above.reduce((sum, x) => sum + x, 0) / above.length : 0 };
  });
  wishes.sort((a, b) => a.x - b.x || order(a.node) - order(b.node));
  let last = -Infinity;
  let drift = 0;
  for (const wish of wishes) {
    wish.at = last = Math.max(wish.x, last + step);
    drift += wish.at - wish.x;
  }
  const shift = drift / wishes.length;
  for (const { node, at } of wishes) {
    places.set(node.id, { x: at - shift, y: index * (NODE.height + NODE.down) });
  }
}

// In a comparison of two graphs, nodes have ranks, so that both graphs have the same order.
const order = (node) => node.rank ?? node.id;

function edges(nodes, places) {
  const found = [];
  for (const node of nodes) {
    for (const parent of node.parents) {
      if (places.has(parent)) found.push({ from: parent, to: node.id });
    }
  }
  return found;
}

// Moves all nodes to positive coordinates, and returns the size of the drawing.
function measure(places, layers) {
  let left = Infinity;
  let right = -Infinity;
  for (const { x } of places.values()) {
    left = Math.min(left, x);
    right = Math.max(right, x);
  }
  if (!places.size) return { width: 0, height: 0 };
  for (const place of places.values()) place.x -= left;
  return { width: right - left + NODE.width, height: layers * (NODE.height + NODE.down) - NODE.down };
}

export function curve(from, to) {
  const [x1, y1] = [from.x + NODE.width / 2, from.y + NODE.height];
  const [x2, y2] = [to.x + NODE.width / 2, to.y];
  const bend = Math.max(10, Math.min(50, (y2 - y1) / 2));
  return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
}
