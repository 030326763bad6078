// A model's text as elements: paragraphs, fenced code, `code` and **bold**. It is never parsed as
// HTML. A text that grows redraws its last block only, so that nothing jumps and a selection stays.

import { h } from "../dashboard/dom.js";

const FENCE = /^```([\w+-]*)\s*$/;

export function write(box, text) {
  const blocks = split(text);
  blocks.forEach((block, index) => {
    const now = box.children[index];
    const source = `${block.code ? "```" : ""}${block.text}`;
    if (now?.source === source) return;
    const element = block.code ? h("pre", {}, h("code", {}, block.text)) : h("p", {}, ...inline(block.text));
    element.source = source;
    if (now) now.replaceWith(element);
    else box.append(element);
  });
  while (box.children.length > blocks.length) box.lastElementChild.remove();
}

function split(text) {
  const blocks = [];
  let lines = [];
  let code = false;
  const close = () => {
    const joined = lines.join("\n");
    if (code || joined.trim()) blocks.push({ code, text: code ? joined : joined.trim() });
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (FENCE.test(line) && (!code || line.trim() === "```")) {
      close();
      code = !code;
    } else if (!code && line.trim() === "") close();
    else lines.push(line);
  }
  if (lines.length || code) close();
  return blocks;
}

function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part) => {
    if (part.length > 2 && part.startsWith("`")) return h("code", {}, part.slice(1, -1));
    if (part.length > 4 && part.startsWith("**")) return h("strong", {}, part.slice(2, -2));
    return part;
  });
}
