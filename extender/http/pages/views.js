// Which view is shown: the cluster, preemptions, reports, the form "would it fit", or what a search found.

import { $, setText } from "./dom.js";
import { Fit } from "./views/fit.js";
import { Moves } from "./views/moves.js";
import { Preemptions } from "./views/preemptions.js";
import { Reports } from "./views/reports.js";
import { Search } from "./views/search.js";
import { SPAN } from "./views/spans.js";

const SECTIONS = {
  "": ["gangs", "topology", "feed"],
  preemptions: ["preemptions"],
  reports: ["reports"],
  fit: ["fit"],
  moves: ["moves", "topology"],
  search: ["results"],
};

const MOMENTS = new Set(["", "search"]); // views in which the slider shows something

export class Views {
  /**
   * @param address where the user goes.
   * @param on `link(kind, name)` and `event(position)`: the properties of links; `moves(resource)`: other moves are shown, of that resource.
   */
  constructor(address, on) {
    this.address = address;
    this.before = ""; // the view before a search
    const find = (q) => address.go({ view: "search", q }, { replace: address.now.view === "search" });
    const leave = () => address.go({ view: this.before, q: "" });
    this.parts = {
      preemptions: new Preemptions(on),
      reports: new Reports({ ...on, report: (report) => address.go({ report }) }),
      fit: new Fit(on),
      moves: new Moves(on),
      search: new Search({ ...on, find, leave }),
    };
    for (const select of document.querySelectorAll("select.span")) {
      select.addEventListener("change", () => address.go({ span: select.value }));
    }
    for (const tab of document.querySelectorAll("#views a")) {
      const at = tab.dataset.view ? { at: "" } : {}; // the other views are not about a moment
      tab.addEventListener("click", (event) => address.follow(event, { view: tab.dataset.view, q: "", ...at }));
    }
    $("skip").addEventListener("click", () => $("content").focus());
    document.addEventListener("keydown", (event) => {
      const writes = event.target.closest("input, textarea, select");
      if (event.key !== "/" || writes || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      $("search-text").focus();
    });
  }

  /** A new event was recorded. */
  arrived(event) {
    if (/^Preemption|^VictimGone$/.test(event.type)) this.parts.preemptions.changed();
    if (/^Moves?[A-Z]/.test(event.type)) this.poll();
  }

  /** Read again what changes without an event. */
  poll() {
    if (!$("moves").hidden) this.parts.moves.read();
  }

  /** Return the picture of the map in this view. @param state StateAt. */
  pictured(picture, state) {
    return $("moves").hidden ? picture : this.parts.moves.pictured(picture, state);
  }

  /** Show the view of an address. */
  show(values) {
    const view = values.view in SECTIONS ? values.view : "";
    if (view !== "search") {
      this.before = view;
      this.parts.search.hide();
    }
    for (const id of Object.values(SECTIONS).flat()) $(id).hidden = !SECTIONS[view].includes(id);
    $("time").hidden = !MOMENTS.has(view) && values.at === "";
    $("strip").hidden = view !== "";
    for (const tab of document.querySelectorAll("#views a")) {
      if (tab.dataset.view === view) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    for (const select of document.querySelectorAll("select.span")) select.value = values.span || SPAN;
    const title = { preemptions: "preemptions", reports: "reports", fit: "would it fit", moves: "moves", search: `search ${values.q}` }[view];
    const chosen = values.gang || values.node || values.about || (values.event && `event ${values.event}`);
    setText(document.querySelector("title"), [chosen, title, "gang-extender"].filter(Boolean).join(" - "));
    this.parts[view]?.show?.(values);
  }
}
