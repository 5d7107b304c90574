// The events of the log, newest first: live, or those up to the point in time that is shown.

import { $, el, setText } from "./dom.js";
import { count, local, stamp, utc } from "./units.js";

const ROWS_MAX = 200;

export class Feed {
  /** @param on `gang(name)`, `moment(position)`, and `filter()` when the filter for one gang is set or cleared. */
  constructor(on) {
    this.on = on;
    this.facts = []; // newest first
    $("feed-gang").addEventListener("change", () => on.filter());
  }

  /** The gang of the filter; empty: all. */
  wanted(gang) {
    return $("feed-gang").checked ? gang : "";
  }

  /** Show events, newest first. */
  show(facts, words) {
    this.facts = facts.slice(0, ROWS_MAX);
    this.draw(words);
  }

  /** Add a new event at the top. */
  add(fact, words) {
    this.facts = [fact, ...this.facts].slice(0, ROWS_MAX);
    this.draw(words);
  }

  draw(words) {
    setText($("feed-text"), words);
    setText($("feed-more"), this.facts.length === 0 ? "No events." : this.facts.length === ROWS_MAX ? `The newest ${count(ROWS_MAX, "event")}; earlier ones with the slider.` : "");
    d3.select("#facts")
      .selectAll("li")
      .data(this.facts, (fact) => `${fact.position} ${fact.time}`) // a log that lost its end has positions again
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
      el("button", { type: "button", class: "link at", text: String(fact.position), title: "Show the state as of this event", onclick: () => this.on.moment(fact.position) }),
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
