// The facts of the log, newest first: live as they come, of the past those up to the moment that is shown.

import { $, el, say } from "./dom.js";
import { count, local, stamp, utc } from "./units.js";

const ROWS_MAX = 200;

export class Feed {
  /** @param on `gang(name)`, `moment(position)`, and `filter()` when only one gang is wanted or all are again. */
  constructor(on) {
    this.on = on;
    this.facts = []; // newest first
    $("feed-gang").addEventListener("change", () => on.filter());
  }

  /** The gang whose facts alone are wanted; empty: all. */
  wanted(gang) {
    return $("feed-gang").checked ? gang : "";
  }

  /** Show facts, newest first. */
  show(facts, words) {
    this.facts = facts.slice(0, ROWS_MAX);
    this.draw(words);
  }

  /** Put a fact that has just come in front. */
  add(fact, words) {
    this.facts = [fact, ...this.facts].slice(0, ROWS_MAX);
    this.draw(words);
  }

  draw(words) {
    say($("feed-says"), words);
    say($("feed-more"), this.facts.length === 0 ? "No facts." : this.facts.length === ROWS_MAX ? `The newest ${count(ROWS_MAX, "fact")}; earlier ones with the slider.` : "");
    d3.select("#facts")
      .selectAll("li")
      .data(this.facts, (fact) => `${fact.position} ${fact.time}`) // positions come again in a log that lost its end
      .join((enter) => enter.append((fact) => this.row(fact)))
      .order();
  }

  row(fact) {
    const gang = fact.gang
      ? el("button", { type: "button", class: "link gang-name", text: fact.gang, title: fact.gang, onclick: () => this.on.gang(fact.gang) })
      : el("span", { class: "gang-name quiet", text: "–" });
    return el(
      "li",
      { "data-position": fact.position },
      el("button", { type: "button", class: "link at", text: String(fact.position), title: "Show everything as of this fact", onclick: () => this.on.moment(fact.position) }),
      el("time", { datetime: fact.time, text: stamp(fact.time, new Date().toISOString()), title: `${utc(fact.time)} = ${local(fact.time)}` }),
      el("span", { class: `type ${tone(fact.type)}`, text: fact.type }),
      gang,
      el("span", { class: "summary", text: fact.summary, title: fact.summary }),
    );
  }
}

function tone(type) {
  if (/Refused|Invalid|Failed|Lost|Evicted|Expired|Drift|Truncated|Vetoed|Abandoned/.test(type)) return "bad";
  return /Preemption|Released/.test(type) ? "odd" : "good";
}
