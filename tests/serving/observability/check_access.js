// Returns the faults that keep a person from reading or reaching a part of the page, as texts.
() => {
  const faults = [];
  const shown = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && !element.closest(".hidden");
  const call = (element) => `${element.tagName.toLowerCase()}#${element.id || element.className?.baseVal || element.className}`;

  // Colours as red, green, blue of 255, and opacity of 1.
  const parsed = (colour) => {
    const parts = colour.match(/[\d.]+(?:e-?\d+)?/g).map(Number);
    const [red, green, blue] = colour.startsWith("color(") ? parts.slice(0, 3).map((part) => 255 * part) : parts;
    return [red, green, blue, parts[3] ?? 1];
  };
  const over = (front, back) => [0, 1, 2].map((part) => front[part] * front[3] + back[part] * (1 - front[3])).concat(1);
  const behind = (element) => {
    const colours = [];
    for (let at = element; at; at = at.parentElement) colours.unshift(parsed(getComputedStyle(at).backgroundColor));
    return colours.reduce((back, front) => over(front, back), [255, 255, 255, 1]);
  };
  const light = (colour) => {
    const linear = colour.slice(0, 3).map((part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const contrast = (element, pseudo, property) => {
    const back = behind(element);
    const [more, less] = [light(over(parsed(getComputedStyle(element, pseudo)[property]), back)), light(back)].sort((a, b) => b - a);
    return (more + 0.05) / (less + 0.05);
  };
  const read = (element, ratio, text) => {
    if (ratio < 4.5) faults.push(`contrast ${ratio.toFixed(2)}: ${call(element)} ${text.trim().slice(0, 40)}`);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !shown(element) || element.closest(":disabled, option, .skip")) continue;
    read(element, contrast(element, null, element instanceof SVGElement ? "fill" : "color"), texts.currentNode.data);
  }
  for (const field of document.querySelectorAll("[placeholder]")) {
    if (shown(field)) read(field, contrast(field, "::placeholder", "color"), field.placeholder);
  }

  // Names of the elements that can be reached or that stand for a picture, and the outline of the page.
  for (const element of document.querySelectorAll("a, button, input, select, textarea, [tabindex='0'], [role=img]:not(svg *)")) {
    const named = element.getAttribute("aria-label") || element.labels?.[0]?.textContent || element.textContent;
    if (shown(element) && !named?.trim()) faults.push(`no name: ${call(element)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map(({ id }) => id);
  for (const id of ids.filter((id, at) => ids.indexOf(id) !== at)) faults.push(`twice: #${id}`);
  for (const part of ["h1", "main", "title"]) {
    if (document.querySelectorAll(`${part}:not(svg *)`).length !== 1) faults.push(`not one ${part}`);
  }
  for (const element of document.querySelectorAll("[aria-controls], [aria-labelledby]")) {
    const of = element.getAttribute("aria-controls") ?? element.getAttribute("aria-labelledby");
    if (!document.getElementById(of)) faults.push(`refers to no part: ${call(element)} ${of}`);
  }
  const moving = matchMedia("(prefers-reduced-motion: reduce)").matches ? document.getAnimations().length : 0;
  if (moving) faults.push(`${moving} animations`);
  return faults;
}
