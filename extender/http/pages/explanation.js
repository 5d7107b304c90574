// Why an object is in its state, and what would help: the answer of `GET /v1/explain`, as the command `explain` has it.

import { ask } from "./api.js";
import { badge } from "./gangs.js";
import { el, refill, textList } from "./dom.js";
import { utc } from "./units.js";

const MARKS = { yes: "✓", no: "✗", unknown: "?", "not reached": "–", "not recorded": "?" };

export class Explanations {
  /** @param on `link(kind, name)`: the properties of a link to an object; `answered()`: an answer came. */
  constructor(on) {
    this.on = on;
    this.name = "";
    this.at = "";
    this.version = "";
    this.found = null; // the answer about `name` at `at`, once there is one
    this.box = el("div", { class: "explanation", "aria-live": "polite" });
  }

  /** Whether there is an answer about a name at a moment. */
  has(name, at) {
    return this.name === name && this.at === at && this.found !== null;
  }

  /**
   * Return the element with the explanation of an object; the answer is requested when name, moment or version change.
   *
   * @param name KIND/NAMESPACE/NAME, of a node KIND/NAME.
   * @param at position of the past; empty: now.
   * @param version changes when the answer may have changed.
   */
  of(name, at, version) {
    const other = name !== this.name || at !== this.at;
    if (other) {
      this.found = null;
      this.box.replaceChildren(el("p", { class: "quiet", text: "Asking why …" }));
    }
    if (other || version !== this.version) {
      [this.name, this.at, this.version] = [name, at, version];
      this.read(name, at);
    }
    return this.box;
  }

  async read(name, at) {
    let parts;
    let found = null;
    try {
      found = (await ask("explain", { name, at })).body;
      parts = this.parts(found);
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      parts = [el("p", { class: "fault-text", text: problem.message }), this.again("Ask again")];
    }
    if (name !== this.name || at !== this.at) return;
    this.found = found;
    refill(this.box, ...parts);
    this.on.answered();
  }

  again(text) {
    return el("button", { type: "button", class: "again", text, onclick: () => this.read(this.name, this.at) });
  }

  parts(found) {
    return [
      el("p", { class: "answer" }, found.state && found.gang?.gang !== found.name ? badge(found.state) : null, ` ${found.answer}`),
      this.list("Also", found.reasons),
      this.list("These requirements cannot hold together", found.conflict),
      this.list("What would help", found.help, "help"),
      this.list("What its wishes reached when it was planned", [...found.wishes, ...found.better.map((better) => `${better.group}: ${better.text}`)]),
      this.checks(found.checks),
      this.related(found.related),
      el("p", { class: "quiet" }, `As of ${utc(found.as_of)}. ${found.limitations.join(" ")} `, this.at ? null : this.again("Ask again")),
    ];
  }

  list(title, texts, name) {
    return textList(el("h3", { text: title }), texts, name);
  }

  checks(checks) {
    if (!checks.length) return null;
    const hold = checks.every((one) => one.outcome === "yes");
    const reached = checks.filter((one) => one.outcome !== "not reached");
    const rest = checks.filter((one) => one.outcome === "not reached").map((one) => one.check);
    const lines = reached.map((one) =>
      el("li", { class: `check ${one.outcome}` }, el("span", { class: "mark", "aria-hidden": "true", text: MARKS[one.outcome] }),
        el("span", {}, el("strong", { text: one.check }), el("span", { class: "hidden-text", text: `: ${one.outcome}` }), one.text ? ` ${one.text}` : "")));
    if (rest.length) lines.push(el("li", { class: "check quiet" }, el("span", { class: "mark", "aria-hidden": "true", text: "–" }), `not reached: ${rest.join(", ")}`));
    const list = el("ul", { class: "checks" }, ...lines);
    if (hold) return el("details", {}, el("summary", { text: `All ${checks.length} checks hold` }), list);
    return el("div", {}, el("h3", { text: "Checks" }), list);
  }

  related(related) {
    if (!related.length) return null;
    const lines = related.map((one) => el("li", {}, el("a", { ...this.on.link(one.kind, one.name), text: `${one.kind} ${one.name}` }), ` ${one.relation}`));
    return el("div", {}, el("h3", { text: "Related" }), el("ul", { class: "plain related" }, ...lines));
  }
}
