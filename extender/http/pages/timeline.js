// The slider: one step is one fact of the log, its right end is now. Moves of it are told to whom it may concern.

import { $, say } from "./dom.js";
import { local, localTime, utc } from "./units.js";

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

  /** The log has grown to `head`; live the slider goes along. */
  grow(head, live) {
    this.head = Math.max(1, head);
    this.slider.max = String(this.head);
    if (live) this.slider.value = String(this.head);
    this.slider.disabled = head < 1;
    $("later").disabled = live;
    $("earlier").disabled = head < 2;
  }

  /** Say in a word what is shown. */
  mode(live, stale, known) {
    say($("mode"), !known ? "" : !live ? "Then" : stale ? "Last known" : "Now");
  }

  /** Show which moment is shown. @param moment {position, time} or null (nothing recorded). */
  show(moment, live, begin, end) {
    $("live").setAttribute("aria-pressed", String(live));
    document.body.classList.toggle("past", !live);
    this.grow(this.head, live);
    const told = moment && `as of fact ${moment.position} of ${this.head}, recorded ${utc(moment.time)} = ${localTime(moment.time)} local`;
    say($("when"), told ?? "");
    $("when").title = moment === null ? "" : local(moment.time);
    say($("log-begin"), begin ? `log begins ${utc(begin)}` : "");
    say($("log-end"), end ? `last fact ${utc(end)}` : "");
    if (moment === null) return;
    if (!live) this.slider.value = String(moment.position);
    this.slider.setAttribute("aria-valuetext", `fact ${moment.position} of ${this.head}, ${utc(moment.time)}${live ? ", live" : ""}`);
  }
}

function localNow() {
  const now = new Date();
  return new Date(now.getTime() - now.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}
