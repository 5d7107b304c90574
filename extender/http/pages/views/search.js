// Search by a part of any name: groups, workloads, pods and nodes, with their kinds.

import { ask } from "../api.js";
import { $, el, setText } from "../dom.js";
import { count } from "../units.js";

const LIMIT = 200;

export class Search {
  /** @param on `find(text)`, `leave()`, and `link(kind, name)`: the properties of a link. */
  constructor(on) {
    this.on = on;
    this.text = "";
    $("search-text").addEventListener("input", () => this.typed());
    $("search").addEventListener("submit", (event) => {
      event.preventDefault();
      this.typed();
      document.querySelector("#found a")?.focus();
    });
    $("search-text").addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      on.leave();
    });
  }

  typed() {
    const text = $("search-text").value.trim();
    if (text) this.on.find(text);
    else this.on.leave();
  }

  /** Show the objects of the text in the address. */
  show({ q }) {
    if ($("search-text").value.trim() !== q) $("search-text").value = q;
    if (q === this.text) return;
    this.text = q;
    if (q) this.read(q);
    else this.draw([], "Type a part of the name of a gang, group, pod, workload or node.");
  }

  /** Forget the text: another view is shown. */
  hide() {
    this.text = "";
    if (document.activeElement !== $("search-text")) $("search-text").value = "";
  }

  async read(text) {
    setText($("found-text"), "Searching …");
    let [found, words] = [[], ""];
    try {
      const { body } = await ask("search", { q: text, limit: LIMIT });
      found = body.found;
      words = body.more ? `the first ${LIMIT} of more; add a word` : `${count(found.length, "object")}`;
      if (found.length === 0) words = `Nothing is called ${text} now: no group, workload, pod or node. For a deleted gang, look at the events with the slider.`;
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      words = problem.message;
    }
    if (text === this.text) this.draw(found, words);
  }

  draw(found, words) {
    setText($("found-text"), words);
    $("found").replaceChildren(...found.map(({ kind, name }) =>
      el("li", {}, el("a", this.on.link(kind, name), el("span", { class: "badge", text: kind }), " ", el("span", { text: name })))));
  }
}
