// Renders a model's Markdown as elements: paragraphs, headings, lists, quotes, tables, code, emphasis
// and links. The text is never parsed as HTML. While a text grows, only changed blocks are redrawn, so
// that nothing moves and a selection stays.

import { h } from "../dashboard/dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(?=\S)/;
const DELIMITER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 6;

export function write(box, text) {
  const blocks = split(text.split(/\r?\n/), 0);
  blocks.forEach((block, index) => {
    const drawn = box.children[index];
    const source = `${block.type}\n${block.lines.join("\n")}`;
    if (drawn?.source === source) return;
    const element = elementOf(block, 0);
    element.source = source;
    if (drawn) drawn.replaceWith(element);
    else box.append(element);
  });
  while (box.children.length > blocks.length) box.lastElementChild.remove();
}

// -- blocks -----------------------------------------------------------------------------------

// The blocks in a list of lines, each with its type and its lines.
function split(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const type = depth > DEEPEST ? "paragraph" : typeOf(lines, at);
    const end = ENDS[type](lines, at);
    blocks.push({ type, lines: lines.slice(at, end) });
    at = end;
  }
  return blocks;
}

function typeOf(lines, at) {
  const line = lines[at];
  if (FENCE.test(line)) return "code";
  if (HEADING.test(line)) return "heading";
  if (RULE.test(line)) return "rule";
  if (QUOTE.test(line)) return "quote";
  if (ITEM.test(line)) return "list";
  const isTable = line.includes("|") && lines[at + 1]?.includes("-") && lines[at + 1].includes("|") && DELIMITER.test(lines[at + 1]);
  return isTable ? "table" : "paragraph";
}

// For a block that begins at a given line, the number of the line after its last line.
const ENDS = {
  code(lines, at) {
    const [, fence] = FENCE.exec(lines[at]);
    const closes = (line) => line.trim().startsWith(fence) && line.trim().replaceAll(fence[0], "") === "";
    for (let end = at + 1; end < lines.length; end += 1) if (closes(lines[end])) return end + 1;
    return lines.length;
  },
  heading: (lines, at) => at + 1,
  rule: (lines, at) => at + 1,
  quote: (lines, at) => until(lines, at, (line) => !QUOTE.test(line)),
  table: (lines, at) => until(lines, at, (line) => !line.includes("|")),
  list(lines, at) {
    const least = ITEM.exec(lines[at])[1].length;
    const ordered = isOrdered(lines[at]);
    let end = at + 1;
    while (end < lines.length) {
      const next = lines[end].trim() === "" ? end + 1 : end;
      const line = lines[next];
      if (line === undefined || line.trim() === "") break;
      const isInside = indent(line) > least;
      const isItem = ITEM.test(line) && indent(line) >= least && isOrdered(line) === ordered && !RULE.test(line);
      const isLazy = next === end && typeOf(lines, next) === "paragraph";
      if (!isInside && !isItem && !isLazy) break;
      end = next + 1;
    }
    return end;
  },
  paragraph(lines, at) {
    for (let end = at + 1; end < lines.length; end += 1) {
      if (lines[end].trim() === "" || typeOf(lines, end) !== "paragraph") return end;
    }
    return lines.length;
  },
};

function until(lines, at, isOver) {
  for (let end = at + 1; end < lines.length; end += 1) if (lines[end].trim() === "" || isOver(lines[end])) return end;
  return lines.length;
}

const indent = (line) => line.length - line.trimStart().length;
const isOrdered = (line) => /^\s*\d/.test(line);

function elementOf({ type, lines }, depth) {
  if (type === "code") return code(lines);
  if (type === "rule") return h("hr");
  if (type === "heading") {
    const [, marks, words] = HEADING.exec(lines[0]);
    // The page itself uses the first two levels of headings.
    return h(`h${Math.min(6, marks.length + 2)}`, {}, ...inline(words));
  }
  if (type === "quote") return h("blockquote", {}, ...inner(lines.map((line) => line.replace(QUOTE, "")), depth + 1));
  if (type === "table") return table(lines);
  if (type === "list") return list(lines, depth + 1);
  return h("p", {}, ...inline(lines.join("\n").trim()));
}

const inner = (lines, depth) => split(lines, depth).map((block) => elementOf(block, depth));

function code(lines) {
  const [, fence] = FENCE.exec(lines[0]);
  const last = lines.at(-1).trim();
  const isClosed = lines.length > 1 && last.startsWith(fence) && last.replaceAll(fence[0], "") === "";
  return h("pre", { tabindex: 0, dir: "ltr" }, h("code", {}, lines.slice(1, isClosed ? -1 : undefined).join("\n")));
}

function list(lines, depth) {
  const items = [];
  const least = indent(lines[0]);
  for (const line of lines) {
    const match = ITEM.exec(line);
    if (match && match[1].length <= least) items.push({ width: match[0].length, lines: [line.slice(match[0].length)] });
    else {
      const { width, lines: own } = items.at(-1);
      own.push(line.slice(Math.min(width, indent(line))));
    }
  }
  // The first letter of the list says on which side its numbers are.
  const side = { dir: "auto" };
  const parts = items.map((item) => {
    const blocks = split(item.lines, depth);
    const [first, ...rest] = blocks;
    const head = first?.type === "paragraph" ? task(inline(first.lines.join("\n").trim())) : first ? [elementOf(first, depth)] : [];
    return h("li", {}, ...head, ...rest.map((block) => elementOf(block, depth)));
  });
  const start = Number.parseInt(lines[0].trim(), 10);
  return isOrdered(lines[0]) ? h("ol", { ...side, start: start === 1 ? null : start }, ...parts) : h("ul", side, ...parts);
}

// An item of a list of tasks begins with a box.
function task(parts) {
  const match = typeof parts[0] === "string" ? /^\[([ xX])\] /.exec(parts[0]) : null;
  return match ? [`${match[1] === " " ? "☐" : "☑"} ${parts[0].slice(4)}`, ...parts.slice(1)] : parts;
}

function table([head, delimiter, ...rows]) {
  const cells = (line) => line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
  const sides = cells(delimiter).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : null));
  const cell = (tag, words, index) => h(tag, { ...(tag === "th" ? { scope: "col" } : {}), "data-align": sides[index] }, ...inline(words));
  const row = (line, tag) => h("tr", {}, ...cells(line).map((words, index) => cell(tag, words, index)));
  const body = h("table", {}, h("thead", {}, row(head, "th")), h("tbody", {}, ...rows.map((line) => row(line, "td"))));
  return h("div", { class: "table", tabindex: 0, dir: "auto" }, body);
}

// -- within a line ----------------------------------------------------------------------------

const ESCAPED = /[!-/:-@[-`{-~]/;
const LINK = /!?\[([^[\]\n]{0,500})\]\(\s*<?([^\s<>()]{1,2000}(?:\([^\s()<>]{0,500}\)[^\s()<>]{0,500})?)>?(?:\s+"[^"\n]{0,500}")?\s*\)/y;
const ADDRESS = /<?(https?:\/\/[^\s<>"'`]{0,2000}[^\s<>"'`.,;:!?*_~)\]])>?/y;
const WORD = /[\p{L}\p{N}_]/u;
const TAGS = { "***": "em", ___: "em", "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };

function inline(text, depth = 0) {
  const parts = [];
  const unclosed = new Set(); // marks that have no end in the rest of the text
  let plain = 0;
  let at = 0;
  while (at < text.length) {
    const span = spanAt(text, at, unclosed, depth);
    if (!span) {
      at += 1;
      continue;
    }
    if (at > plain) parts.push(text.slice(plain, at));
    parts.push(span.part);
    at = plain = span.end;
  }
  if (plain < text.length) parts.push(text.slice(plain));
  return parts;
}

function spanAt(text, at, unclosed, depth) {
  const sign = text[at];
  if (sign === "\\" && ESCAPED.test(text[at + 1] ?? "")) return { part: text[at + 1], end: at + 2 };
  if (sign === "`") return codeAt(text, at, unclosed);
  if (sign === "[" || (sign === "!" && text[at + 1] === "[")) return linkAt(text, at);
  if (sign === "<" || (sign === "h" && !WORD.test(text[at - 1] ?? ""))) return addressAt(text, at);
  if ("*_~".includes(sign) && depth < DEEPEST) return emphasisAt(text, at, unclosed, depth);
  return null;
}

function codeAt(text, at, unclosed) {
  let from = at;
  while (text[from] === "`") from += 1;
  const ticks = text.slice(at, from);
  if (unclosed.has(ticks)) return { part: ticks, end: from };
  for (let to = text.indexOf(ticks, from); to >= 0; to = text.indexOf(ticks, to)) {
    let end = to;
    while (text[end] === "`") end += 1;
    if (end - to === ticks.length) return { part: h("code", {}, text.slice(from, to)), end };
    to = end;
  }
  unclosed.add(ticks);
  return { part: ticks, end: from };
}

function linkAt(text, at) {
  LINK.lastIndex = at;
  const match = LINK.exec(text);
  // An image would be loaded from another server, so it becomes a link.
  return match && isSafe(match[2]) ? { part: link(match[2], match[1] || match[2]), end: LINK.lastIndex } : null;
}

function addressAt(text, at) {
  ADDRESS.lastIndex = at;
  const match = ADDRESS.exec(text);
  if (!match || !isSafe(match[1])) return null;
  const isBare = text[at] !== "<";
  return { part: link(match[1], match[1]), end: at + (isBare ? match[1].length : match[0].length) };
}

function isSafe(address) {
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(address).protocol);
  } catch {
    return false;
  }
}

const link = (address, words) => h("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, words);

function emphasisAt(text, at, unclosed, depth) {
  const sign = text[at];
  const times = text.startsWith(sign.repeat(3), at) ? 3 : text[at + 1] === sign ? 2 : 1;
  const marks = sign.repeat(times);
  if (!TAGS[marks] || unclosed.has(marks)) return null;
  const from = at + marks.length;
  if (!/\S/.test(text[from] ?? "") || text[from] === sign) return null;
  if (sign === "_" && WORD.test(text[at - 1] ?? "")) return null;
  for (let to = text.indexOf(marks, from); to >= 0; to = text.indexOf(marks, to + marks.length)) {
    if (times === 1 && text[to + 1] === sign) {
      to += 1; // the inside has strong words
      continue;
    }
    if (/\s/.test(text[to - 1]) || (sign === "_" && WORD.test(text[to + marks.length] ?? ""))) continue;
    const words = inline(text.slice(from, to), depth + 1);
    return { part: h(TAGS[marks], {}, ...(times === 3 ? [h("strong", {}, ...words)] : words)), end: to + times };
  }
  unclosed.add(marks);
  return null;
}
