// The events of the log, newest first: live, or those up to the point in time that is shown.

import { $, el, setName, setText } from "./dom.js";
import { local, stamp, utc } from "./units.js";

const STEP = 200; // rows

export class Feed {
  /**
   * @param on `gang(name)` and `event(position)`: the properties of links; `moment(position)`; `filter()` when the filter
   *   for one gang is set or cleared; `earlier()` when the user wants earlier events.
   */
  constructor(on) {
    this.on = on;
    this.events = []; // newest first
    this.most = STEP;
    this.button = el("button", { type: "button", class: "more", text: "Show earlier events", onclick: () => on.earlier() });
    $("feed-gang").addEventListener("change", () => on.filter());
  }

  /** The gang of the filter; empty: all. */
  wanted(gang) {
    return $("feed-gang").checked ? gang : "";
  }

  /** Show events, newest first; `anew`: other ones than before, so that the list is short again. */
  show(events, words, { anew = false } = {}) {
    if (anew) this.most = STEP;
    this.events = events.slice(0, this.most);
    this.draw(words);
  }

  /** Add earlier events below. */
  append(events, words) {
    this.most += STEP;
    this.show([...this.events, ...events.filter((event) => event.position < this.events.at(-1).position)], words);
    if (events.length === 0) this.ended();
  }

  /** There are no earlier events. */
  ended() {
    const focused = document.activeElement === this.button;
    $("feed-more").replaceChildren("These are all events.");
    if (focused) document.querySelector("#events li:last-child a")?.focus();
  }

  draw(words) {
    setText($("feed-text"), words);
    if (this.events.length === 0) $("feed-more").replaceChildren("No events.");
    else if (this.events.length < STEP) $("feed-more").replaceChildren();
    else if (this.button.parentElement === null) $("feed-more").replaceChildren(this.button);
    d3.select("#events")
      .selectAll("li")
      .data(this.events, (event) => `${event.position} ${event.time}`) // a log that lost its end has positions again
      .join((enter) => enter.append((event) => this.row(event)))
      .order();
  }

  row(event) {
    const gang = event.gang
      ? setName(el("a", { ...this.on.gang(event.gang), class: "link gang-name" }), event.gang)
      : el("span", { class: "gang-name quiet", text: "–" });
    return el(
      "li",
      { "data-position": event.position },
      el("button", { type: "button", class: "link at", text: String(event.position), title: "Show the state as of this event", onclick: () => this.on.moment(event.position) }),
      el("time", { datetime: event.time, text: stamp(event.time, new Date().toISOString()), title: `${utc(event.time)} = ${local(event.time)}` }),
      el("span", { class: `type ${tone(event.type)}`, text: event.type }),
      gang,
      el("a", { ...this.on.event(event.position), class: "link summary", text: event.summary || event.type, title: `${event.summary}: show this event` }),
    );
  }
}

function tone(type) {
  if (/Unschedulable|Invalid|Failed|Terminated|Gone|TimedOut|Drift|Truncated|Rejected|Cancelled/.test(type)) return "bad";
  return /Preemption|Released/.test(type) ? "odd" : "good";
}
