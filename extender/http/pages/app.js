// The page: keeps the point in time and the selection, requests them from /v1, and updates the parts of the page.

import { ask, Follower, Latest } from "./api.js";
import { Detail } from "./detail.js";
import { $, el, setText } from "./dom.js";
import { Feed } from "./feed.js";
import { Gangs } from "./gangs.js";
import { picture } from "./model.js";
import { Timeline } from "./timeline.js";
import { Topology } from "./topology.js";
import { utc } from "./units.js";

const POLL_MS = 10000; // nodes and ordinary pods change without an event
const RETRY_MS = 2000;
const PAGE = 200; // events

class App {
  constructor() {
    this.at = null; // position or time that is shown; null: now
    this.head = 0; // newest known position of the log
    this.begin = ""; // time of the first event
    this.state = null;
    this.fleet = null;
    this.tree = null;
    this.chosen = { gang: "", node: "" };
    this.faults = new Map(); // what fails -> text
    this.stale = false; // what is shown may be out of date
    this.fresh = []; // events that are not drawn yet, oldest first
    this.parts();
    this.states = new Latest(() => this.guarded("the state", () => this.readState(), this.states));
    this.events = new Latest(() => this.guarded("the events", () => this.readEvents(), this.events));
  }

  parts() {
    const gang = (name) => this.choose({ gang: name, node: "" });
    const node = (name) => this.choose({ gang: "", node: name });
    this.timeline = new Timeline({ live: () => this.go(null), moment: (at) => this.go(at) });
    this.topology = new Topology({ node, focus: () => this.remember() });
    this.gangs = new Gangs(gang);
    this.detail = new Detail({ gang, node, close: () => this.choose({ gang: "", node: "" }) });
    this.feed = new Feed({ gang, moment: (at) => this.go(at), filter: () => this.events.ask(true) });
    this.follower = new Follower({
      event: (event) => this.arrived(event),
      link: (state, words) => this.linked(state, words),
      gone: (head, reason) => this.startOver(head, reason),
    });
  }

  get live() {
    return this.at === null;
  }

  start() {
    const address = new URLSearchParams(location.hash.slice(1));
    this.at = address.get("at");
    this.chosen = { gang: address.get("gang") ?? "", node: address.get("node") ?? "" };
    this.events.ask(true);
    setInterval(() => { if (this.live && !document.hidden) this.states.ask(); }, POLL_MS);
    document.addEventListener("visibilitychange", () => this.seen());
  }

  /** A page in the background has no connection; in the foreground it continues where it was. */
  seen() {
    if (document.hidden) {
      this.follower.stop();
      return;
    }
    this.follower.resume();
    this.states.ask();
  }

  /** Run a function that requests /v1; show an error and try again later. */
  async guarded(what, work, again) {
    try {
      await work();
      this.fault(what, "");
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      if (problem.status >= 400 && problem.status < 500 && !this.live) {
        this.fault("the moment", problem.message);
        this.go(this.state && !this.shownLive ? this.state.as_of.position : null, { keepFault: true });
        return;
      }
      this.fault(what, problem.message);
      setTimeout(() => again.ask(), RETRY_MS);
    }
  }

  fault(what, words) {
    if (words) this.faults.set(what, words);
    else this.faults.delete(what);
    const box = $("fault");
    box.hidden = this.faults.size === 0;
    this.stale = ["the state", "the events"].some((name) => this.faults.has(name));
    document.body.classList.toggle("stale", this.stale);
    this.timeline.mode(this.live, this.stale, this.state !== null);
    const shown = this.state ? ` The page shows the last known state, as of ${utc(this.state.as_of.time)}.` : "";
    const lines = [...this.faults].map(([name, text]) => {
      if (name === "the log") return text;
      if (name === "the moment") return `Cannot show that moment: ${text}`;
      return `/v1 does not give ${name}: ${text}. Trying again.${shown}`;
    });
    if (box.textContent !== lines.join("")) box.replaceChildren(...lines.map((line) => el("span", { text: line })));
  }

  /** Show another moment; null: now. */
  go(at, { keepFault = false } = {}) {
    if (!keepFault) ["the moment", "the log"].forEach((name) => this.fault(name, ""));
    const changed = at !== this.at;
    this.at = at;
    this.remember();
    this.states.ask(true);
    if (changed) this.events.ask(true);
  }

  choose(chosen) {
    const filtered = this.feed.wanted("x") !== "" && chosen.gang !== this.chosen.gang;
    this.chosen = chosen;
    this.tree = null;
    this.remember();
    this.draw();
    this.states.ask(true);
    if (filtered) this.events.ask(true);
    if (chosen.gang || chosen.node) $("detail").scrollIntoView({ block: "nearest" });
  }

  /** Put what is shown into the address, so that it can be shared. */
  remember() {
    const address = new URLSearchParams();
    if (this.at !== null) address.set("at", this.at);
    for (const name of ["gang", "node"]) if (this.chosen[name]) address.set(name, this.chosen[name]);
    history.replaceState(null, "", `#${address}`);
  }

  /** Read the page of events up to the point in time; the first time also the begin of the log, and follow it. */
  async readEvents() {
    const gang = this.feed.wanted(this.chosen.gang);
    const at = this.at;
    const parameters = { order: "newest", limit: PAGE, gang };
    if (at !== null) {
      const position = /^\d+$/.test(at) ? Number(at) : null;
      if (position !== null) parameters.after = position + 1;
      else parameters.until = at;
    }
    const { body, position } = await ask("events", parameters);
    if (at !== this.at) return;
    this.advance(position);
    if (this.begin === "" && this.head > 0) {
      const first = await ask("events", { limit: 1 });
      this.begin = first.body[0]?.time ?? "";
    }
    // events that came during the request are newer
    const newest = body[0]?.position ?? 0;
    const since = at === null ? this.fresh.filter((event) => event.position > newest && this.fits(event)) : [];
    this.fresh = [];
    this.feed.show([...since.reverse(), ...body], this.feedWords());
    if (this.follower.position === null) {
      this.follower.start(position, body[0]?.position === position ? body[0] : null);
    }
    this.states.ask(true);
  }

  feedWords() {
    const gang = this.feed.wanted(this.chosen.gang);
    return `${this.live ? "live" : "up to the moment shown"}, newest first${gang ? `, of ${gang}` : ""}`;
  }

  fits(event) {
    const gang = this.feed.wanted(this.chosen.gang);
    return !gang || event.gang === gang;
  }

  advance(position) {
    this.head = Math.max(this.head, position);
    this.timeline.grow(this.head, this.live);
  }

  arrived(event) {
    this.advance(event.position);
    this.begin ||= event.time;
    if (!this.live) return;
    if (!this.fresh.length) requestAnimationFrame(() => this.drawFresh());
    this.fresh.push(event);
    this.states.ask();
  }

  drawFresh() {
    const found = this.fresh.filter((event) => this.fits(event));
    this.fresh = [];
    if (this.live && found.length) this.feed.show([...found.reverse(), ...this.feed.events], this.feedWords());
  }

  linked(state, words) {
    $("link").className = state;
    setText($("link"), state === "live" ? "● follows the log" : `○ ${words}; trying again`);
    this.states.ask(); // also when the stream broke: the requests may still work
  }

  /** Read all again: the log lost its end (an older copy of the database), or is another one. */
  startOver(head, reason) {
    this.follower.stop();
    this.follower.position = null;
    this.head = head;
    this.begin = "";
    this.fresh = [];
    this.at = null;
    this.fault("the log", `The log, now up to event ${head}, ${reason}: part of it was lost, or it is another log. Everything was read again.`);
    this.events.ask(true);
  }

  async readState() {
    const at = this.at;
    if (this.head === 0) {
      const { body } = await ask("nodes");
      this.fleet = body;
      if (this.head === 0) this.show(null, null);
      return;
    }
    const [state, fleet, tree] = await Promise.all([
      ask("state", { at: at ?? "" }),
      at === null || this.fleet === null ? ask("nodes") : null,
      this.readTree(at),
    ]);
    if (at !== this.at) return;
    this.fleet = fleet?.body ?? this.fleet;
    this.advance(state.body.log.position);
    this.show(state.body, tree);
  }

  async readTree(at) {
    if (at !== null || !this.chosen.gang) return null;
    const path = this.chosen.gang.split("/").map(encodeURIComponent).join("/");
    try {
      return (await ask(`gangs/${path}/tree`)).body;
    } catch (problem) {
      if (problem.status !== 404) throw problem;
      return null; // its group is gone, but its members may exist
    }
  }

  show(state, tree) {
    this.state = state;
    this.tree = tree;
    this.shownLive = this.live;
    this.draw();
  }

  draw() {
    const { state, fleet } = this;
    const past = state !== null && !this.shownLive;
    $("empty").hidden = past || Boolean(state?.gangs.length) || this.feed.events.some((event) => event.gang);
    this.timeline.show(state && state.as_of, this.live, this.begin, state?.log.time);
    this.timeline.mode(this.live, this.stale, state !== null);
    this.pictured = picture(state, fleet, past);
    this.topology.show(this.pictured, this.chosen);
    this.gangs.show(state?.gangs ?? [], this.chosen.gang);
    const notCurrent = fleet?.not_current_reason && !past ? [`The view of the cluster may be out of date: ${fleet.not_current_reason}`] : [];
    const limitations = past ? [...(state.limitations ?? []), "Nodes without a domain in the log are placed by their current labels; bars have the current capacity."] : notCurrent;
    $("limitations").replaceChildren(...limitations.map((text) => el("li", { text })));
    this.drawChosen(past);
  }

  drawChosen(past) {
    const { gang: gangName, node: nodeName } = this.chosen;
    if (gangName) {
      const gang = this.state?.gangs.find((one) => one.gang === gangName);
      const preemption = this.state?.preemptions.find((one) => one.preemptor === gangName);
      if (gang) this.detail.gang(gang, this.tree?.gang === gangName ? this.tree : null, preemption);
      else this.detail.missing("Gang", gangName, past);
    } else if (nodeName) {
      const node = this.pictured.nodes.find((one) => one.name === nodeName);
      if (node) this.detail.node(node, this.pictured);
      else this.detail.missing("Node", nodeName, past);
    } else this.detail.hide();
  }
}

new App().start();
