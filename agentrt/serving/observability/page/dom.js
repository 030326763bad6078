// Helpers of all parts: elements, numbers as text, and drawing many changes in a single frame.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children);
  return element;
}

export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Skip equal values, because setting them would make the browser lay out the page again.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function mark(element, name, value) {
  const text = String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

// Makes `parts` the children of `box`, in this order. Parts that are at their place are not touched, and
// the focus stays at its part.
export function arrange(box, parts) {
  const active = document.activeElement;
  const wanted = new Set(parts);
  for (const child of [...box.children]) if (!wanted.has(child)) child.remove();
  let at = box.firstElementChild;
  for (const part of parts) {
    if (part === at) at = at.nextElementSibling;
    else box.insertBefore(part, at);
  }
  if (active !== document.activeElement && box.contains(active)) active.focus({ preventScroll: true });
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10) return `${value.toFixed(2)} s`;
  if (value < 100) return `${value.toFixed(1)} s`;
  if (value < 6000) return `${Math.floor(value / 60)} m ${String(Math.floor(value % 60)).padStart(2, "0")} s`;
  return `${(value / 3600).toFixed(1)} h`;
}

const whole = new Intl.NumberFormat("en");
export const count = (value) => whole.format(value);

export function brief(value) {
  if (value < 10000) return whole.format(Math.round(value));
  return value < 1e6 ? `${(value / 1e3).toFixed(1)}k` : `${(value / 1e6).toFixed(1)}M`;
}

// Calls `draw` once in the next frame, however often it is requested.
export function oncePerFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

// Makes a list a single tab stop: the arrow keys, Home and End move between its parts. Returns a
// function to call after each change of the list.
export function roving(box, selector) {
  const parts = () => [...box.querySelectorAll(selector)].filter((part) => !part.hidden);
  let last = null;
  const settle = (stop) => {
    last = stop;
    for (const part of parts()) mark(part, "tabindex", part === stop ? 0 : -1);
  };
  box.addEventListener("focusin", (event) => {
    const part = event.target.closest(selector);
    if (part && part !== last) settle(part);
  });
  box.addEventListener("keydown", (event) => {
    const all = parts();
    const at = all.indexOf(event.target.closest(selector));
    if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const places = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 };
    const next = all[places[event.key]];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  return () => {
    const all = parts();
    const current = all.find((part) => part.matches("[aria-current='true']"));
    const isInside = all.includes(last) && (last === document.activeElement || !current);
    settle(isInside ? last : (current ?? all[0] ?? null));
  };
}
