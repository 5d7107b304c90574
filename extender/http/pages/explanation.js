// Why an object is in its state, and what would help: the answer of `GET /v1/explain`, as the command `explain` has it.

import { ask } from "./api.js";
import { badge } from "./gangs.js";
import { el, refill, setText, textList } from "./dom.js";
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
    this.reading = false;
    this.answer = el("div", { "aria-live": "polite" });
    this.asOf = el("span");
    this.button = el("button", { type: "button", class: "again", text: "Ask again", onclick: () => this.read(this.name, this.at) });
    this.box = el("div", { class: "explanation" }, this.answer, el("p", { class: "quiet" }, this.asOf, " ", this.button));
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
      this.answer.replaceChildren(el("p", { class: "quiet", text: "Asking why …" }));
      setText(this.asOf, "");
    }
    if (other || version !== this.version) {
      [this.name, this.at, this.version] = [name, at, version];
      this.read(name, at);
    }
    return this.box;
  }

  /** Ask again about what is shown, now; an answer that is the same changes only its time. */
  askAgain() {
    if (this.name && !this.at && !this.reading) this.read(this.name, this.at);
  }

  async read(name, at) {
    let [found, problem] = [null, ""];
    this.reading = true;
    try {
      found = (await ask("explain", { name, at })).body;
    } catch (error) {
      if (error.status === undefined) throw error;
      problem = error.message;
    } finally {
      this.reading = false;
    }
    if (name !== this.name || at !== this.at) return;
    this.button.hidden = Boolean(at && found);
    const before = this.found;
    if (found === null && before !== null) { // what was answered stays
      setText(this.asOf, `As of ${utc(before.as_of)}; not answered again: ${problem}`);
      return;
    }
    setText(this.asOf, found ? `As of ${utc(found.as_of)}. ${found.limitations.join(" ")}` : "");
    this.found = found;
    if (found && before && same(found, before)) return;
    refill(this.answer, ...(found ? this.parts(found) : [el("p", { class: "fault-text", text: problem })]));
    this.on.answered();
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

/** Whether two answers differ in their time alone. */
function same(answer, other) {
  return JSON.stringify({ ...answer, as_of: "" }) === JSON.stringify({ ...other, as_of: "" });
}
