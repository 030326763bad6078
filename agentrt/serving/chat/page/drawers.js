// The drawers of narrow pages: the list of conversations and the running program open over the
// conversation with a button. They close with the same button, with Escape, or after a selection.

import { byId, mark } from "../dashboard/dom.js";

const NARROW = matchMedia("(max-width: 680px)");
const MEDIUM = matchMedia("(max-width: 1100px)");

export class Drawers {
  constructor() {
    this.isOpen = { side: false, panel: false };
    this.isClosed = false; // whether the panel is closed on a page that has room for it
    for (const name of ["side", "panel"]) byId(`show-${name}`).addEventListener("click", () => this.toggle(name));
    for (const query of [NARROW, MEDIUM]) query.addEventListener("change", () => this.close());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      const name = ["side", "panel"].find((drawer) => this.isOpen[drawer]);
      if (!name) return;
      this.close();
      byId(`show-${name}`).focus();
    });
    this.draw();
  }

  toggle(name) {
    const isDrawer = name === "side" ? NARROW.matches : MEDIUM.matches;
    if (!isDrawer) this.isClosed = !this.isClosed;
    else this.isOpen = { side: false, panel: false, [name]: !this.isOpen[name] };
    this.draw();
    if (this.isOpen[name]) byId(name).querySelector("select:enabled, button, [tabindex='0']")?.focus();
  }

  close() {
    this.isOpen = { side: false, panel: false };
    this.draw();
  }

  draw() {
    const { side, panel } = this.isOpen;
    document.body.classList.toggle("with-side", side);
    document.body.classList.toggle("with-panel", panel);
    document.body.classList.toggle("without-panel", this.isClosed);
    mark(byId("show-side"), "aria-expanded", side);
    mark(byId("show-panel"), "aria-expanded", MEDIUM.matches ? panel : !this.isClosed);
    // The part of the page that a drawer covers cannot be reached.
    const isCovered = NARROW.matches && (side || panel);
    byId("talk").inert = byId("below").inert = isCovered;
  }
}
