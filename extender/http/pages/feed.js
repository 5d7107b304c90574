// The events of the log, newest first: live, or those up to the point in time that is shown.

import { $, el, setText } from "./dom.js";
import { count, local, stamp, utc } from "./units.js";

const ROWS_MAX = 200;

export class Feed {
  /** @param on `gang(name)`, `moment(position)`, and `filter()` when the filter for one gang is set or cleared. */
  constructor(on) {
    this.on = on;
    this.events = []; // newest first
    $("feed-gang").addEventListener("change", () => on.filter());
  }

  /** The gang of the filter; empty: all. */
  wanted(gang) {
    return $("feed-gang").checked ? gang : "";
  }

  /** Show events, newest first. */
  show(events, words) {
    this.events = events.slice(0, ROWS_MAX);
    this.draw(words);
  }

  /** Add a new event at the top. */
  add(event, words) {
    this.events = [event, ...this.events].slice(0, ROWS_MAX);
    this.draw(words);
  }

  draw(words) {
    setText($("feed-text"), words);
    setText($("feed-more"), this.events.length === 0 ? "No events." : this.events.length === ROWS_MAX ? `The newest ${count(ROWS_MAX, "event")}; earlier ones with the slider.` : "");
    d3.select("#events")
      .selectAll("li")
      .data(this.events, (event) => `${event.position} ${event.time}`) // a log that lost its end has positions again
      .join((enter) => enter.append((event) => this.row(event)))
      .order();
  }

  row(event) {
    const gang = event.gang
      ? el("button", { type: "button", class: "link gang-name", text: event.gang, title: event.gang, onclick: () => this.on.gang(event.gang) })
      : el("span", { class: "gang-name quiet", text: "–" });
    return el(
      "li",
      { "data-position": event.position },
      el("button", { type: "button", class: "link at", text: String(event.position), title: "Show the state as of this event", onclick: () => this.on.moment(event.position) }),
      el("time", { datetime: event.time, text: stamp(event.time, new Date().toISOString()), title: `${utc(event.time)} = ${local(event.time)}` }),
      el("span", { class: `type ${tone(event.type)}`, text: event.type }),
      gang,
      el("span", { class: "summary", text: event.summary, title: event.summary }),
    );
  }
}

function tone(type) {
  if (/Unschedulable|Invalid|Failed|Terminated|Gone|TimedOut|Drift|Truncated|Rejected|Cancelled/.test(type)) return "bad";
  return /Preemption|Released/.test(type) ? "odd" : "good";
}
