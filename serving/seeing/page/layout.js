// Where the nodes of a program's DAG go: layers from left to right.
//
// A node's layer is the longest way to it from a root. Nodes have parents with smaller ids
// only, and never get new ones, so one pass places them, and a graph that grows keeps its shape.

export const NODE = { width: 112, height: 34, across: 44, down: 12 };

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
  return { places, edges: edges(nodes, places), ...raise(places, layers.length) };
}

// Each node wants to stand at the middle of its parents; those that would collide are
// spread, and the layer is moved back to where its nodes wanted to be on the whole.
function placeLayer(layer, index, places) {
  const step = NODE.height + NODE.down;
  const wishes = layer.map((node) => {
    const above = node.parents.map((parent) => places.get(parent)?.y).filter((y) => y !== undefined);
    return { node, y: above.length ? above.reduce((sum, y) => sum + y, 0) / above.length : 0 };
  });
  wishes.sort((a, b) => a.y - b.y || a.node.id - b.node.id);
  let last = -Infinity;
  let drift = 0;
  for (const wish of wishes) {
    wish.at = last = Math.max(wish.y, last + step);
    drift += wish.at - wish.y;
  }
  const shift = drift / wishes.length;
  for (const { node, at } of wishes) {
    places.set(node.id, { x: index * (NODE.width + NODE.across), y: at - shift });
  }
}

function edges(nodes, places) {
  const found = [];
  for (const node of nodes) {
    for (const parent of node.parents) {
      if (places.has(parent)) found.push({ from: parent, to: node.id });
    }
  }
  return found;
}

// Moves all to positive places, and measures them.
function raise(places, layers) {
  let top = Infinity;
  let bottom = -Infinity;
  for (const { y } of places.values()) {
    top = Math.min(top, y);
    bottom = Math.max(bottom, y);
  }
  if (!places.size) return { width: 0, height: 0 };
  for (const place of places.values()) place.y -= top;
  return { width: layers * (NODE.width + NODE.across) - NODE.across, height: bottom - top + NODE.height };
}

export function curve(from, to) {
  const [x1, y1] = [from.x + NODE.width, from.y + NODE.height / 2];
  const [x2, y2] = [to.x, to.y + NODE.height / 2];
  const bend = Math.max(16, Math.min(60, (x2 - x1) / 2));
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}
