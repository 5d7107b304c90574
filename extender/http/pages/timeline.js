// The slider: one step is one event of the log, its right end is now.

import { $, setText } from "./dom.js";
import { local, localTime, utc, zone } from "./units.js";

export class Timeline {
  /** @param on `live()`, and `moment(at)` with a position or a time. */
  constructor(on) {
    this.on = on;
    this.head = 1;
    this.slider = $("slider");
    this.slider.addEventListener("input", () => this.moved());
    $("live").addEventListener("click", () => on.live());
    $("earlier").addEventListener("click", () => this.step(-1));
    $("later").addEventListener("click", () => this.step(1));
    $("jump").addEventListener("submit", (event) => this.jump(event));
    const zoned = () => ($("jump-zone").value === "utc" ? new Date().toISOString().slice(0, 19) : localNow());
    const fill = () => { $("jump-time").value = zoned(); };
    $("jump-zone").addEventListener("change", fill);
    $("jump-zone").options[1].text = zone;
    fill();
  }

  moved() {
    const position = Number(this.slider.value);
    if (position >= this.head) this.on.live();
    else this.on.moment(position);
  }

  step(by) {
    this.slider.value = String(Number(this.slider.value) + by);
    this.moved();
  }

  jump(event) {
    event.preventDefault();
    const text = $("jump-time").value; // without a zone: 2026-11-20T03:12, with seconds if they are set
    const date = new Date($("jump-zone").value === "utc" ? `${text}Z` : text);
    if (!Number.isNaN(date.getTime())) this.on.moment(date.toISOString());
  }

  /** The log has grown to `head`; live the slider follows. */
  grow(head, live) {
    this.head = Math.max(1, head);
    this.slider.max = String(this.head);
    if (live) this.slider.value = String(this.head);
    $("slide").hidden = head < 2; // there is no other moment
    $("later").disabled = live;
  }

  /** Show in a word which state is shown. */
  mode(live, stale, known) {
    setText($("mode"), !known ? "" : !live ? "Then" : stale ? "Last known" : "Now");
  }

  /** Show the point in time. @param moment {position, time} or null (nothing recorded). */
  show(moment, live, begin, end) {
    $("live").setAttribute("aria-pressed", String(live));
    document.body.classList.toggle("past", !live);
    this.grow(this.head, live);
    const text = moment && `as of event ${moment.position} of ${this.head}, recorded ${utc(moment.time)} = ${localTime(moment.time)}`;
    setText($("when"), text ?? "");
    $("when").title = moment === null ? "" : local(moment.time);
    setText($("log-begin"), begin ? `log begins ${utc(begin)}` : "");
    setText($("log-end"), end ? `last event ${utc(end)}` : "");
    if (moment === null) return;
    if (!live) this.slider.value = String(moment.position);
    this.slider.setAttribute("aria-valuetext", `event ${moment.position} of ${this.head}, ${utc(moment.time)}${live ? ", live" : ""}`);
  }
}

function localNow() {
  const now = new Date();
  return new Date(now.getTime() - now.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}
