// Lays out 300 random graphs with the page's own module. Returns the first fault, or an empty text.
async () => {
  const { layout, NODE } = await import("/dashboard/layout.js");
  let state = 7;
  const random = (n) => (state = (state * 48271) % 2147483647) % n;
  for (let graph = 0; graph < 300; graph += 1) {
    const nodes = [];
    for (let id = 0; id < 1 + random(40); id += 1) {
      const parents = new Set();
      for (let i = random(4); id && i > 0; i -= 1) parents.add(random(id));
      nodes.push({ id, parents: [...parents] });
    }
    const { places, edges, width, height } = layout(nodes);
    const shorter = layout(nodes.slice(0, -1)).places;
    for (const [id, { y }] of shorter) {
      if (places.get(id).y !== y) return `node ${id} changed its layer as the graph grew`;
    }
    if (edges.length !== nodes.reduce((sum, node) => sum + node.parents.length, 0)) return "an edge is missing";
    const all = [...places.values()];
    for (const { from, to } of edges) {
      if (places.get(from).y >= places.get(to).y) return "a parent is not above its child";
    }
    for (const [i, a] of all.entries()) {
      if (a.x < -1e-6 || a.y < 0 || a.x + NODE.width > width + 1e-6 || a.y + NODE.height > height) return "a node is outside";
      for (const b of all.slice(i + 1)) {
        if (a.y === b.y && Math.abs(a.x - b.x) < NODE.width + NODE.across - 1e-6) return "two nodes overlap";
      }
    }
  }
  return "";
}
