// The page: keeps the point in time and the selection, requests them from /v1, and updates the parts of the page.

import { Address, CHOICES, NOTHING } from "./address.js";
import { ask, Follower, Latest } from "./api.js";
import { $, el, setText } from "./dom.js";
import { Faults } from "./faults.js";
import { Feed } from "./feed.js";
import { Gangs, refusedRow } from "./gangs.js";
import { picture } from "./model.js";
import { Selection } from "./selection.js";
import { Strip } from "./strip.js";
import { Timeline } from "./timeline.js";
import { start as startSignOut } from "./token.js";
import { Topology } from "./topology.js";
import { utc } from "./units.js";
import { Views } from "./views.js";

const POLL_MS = 10000; // nodes and ordinary pods change without an event
const RETRY_MS = 2000;
const PAGE = 200; // events
const FEW = 8; // gangs: below them is space for the map
const MANY = 12; // gangs: the table needs the whole column; between both nothing moves
const NARROW = matchMedia("(max-width: 800px)");

class App {
  constructor() {
    this.head = 0; // newest known position of the log
    this.begin = ""; // time of the first event
    this.state = null;
    this.fleet = null;
    this.tree = null;
    this.refused = []; // workloads of which no gang can be made now
    this.known = new Set(); // names of the gangs
    this.faults = new Faults();
    this.arriving = true; // nothing was shown yet
    this.fresh = []; // events that are not drawn yet, oldest first
    this.parts();
    this.states = new Latest(() => this.guarded("the state", () => this.readState(), this.states));
    this.events = new Latest(() => this.guarded("the events", () => this.readEvents(), this.events));
  }

  parts() {
    this.address = new Address((next, before) => this.moved(next, before));
    const { address } = this;
    const link = (kind, name) => address.object(kind, name, this.known);
    const gang = (name) => link("Gang", name);
    const event = (position) => address.link({ ...NOTHING, event: String(position) });
    this.timeline = new Timeline({ live: () => this.go(null), moment: (at) => this.go(at) });
    this.topology = new Topology({ node: (name) => address.go({ ...NOTHING, node: name }) });
    this.gangs = new Gangs({ link: gang, about: (name) => address.link({ ...NOTHING, about: name }), filter: (changes) => address.go(changes) });
    this.strip = new Strip({ state: (state) => address.go({ state, view: "" }), moment: (at) => this.visit(at) });
    this.selection = new Selection(address, { link, event, moment: (at) => this.visit(at), answered: () => this.drawSelection() });
    this.feed = new Feed({ gang, event, moment: (at) => this.go(at), filter: () => this.events.ask(true), earlier: () => this.readEarlier() });
    this.views = new Views(address, { link, event, moves: (resource) => this.drawMoves(resource) });
    this.follower = new Follower({
      event: (arrived) => this.arrived(arrived),
      link: (state, words) => this.linked(state, words),
      gone: (head, reason) => this.startOver(head, reason),
    });
  }

  /** The position or time that is shown; null: now. */
  get at() {
    return this.address.now.at || null;
  }

  /** What is selected: `gang`, `node`, `about` or `event`. */
  get chosen() {
    return this.address.now;
  }

  get live() {
    return this.at === null;
  }

  start() {
    startSignOut();
    this.views.show(this.address.now);
    this.selection.readEvent();
    this.events.ask(true);
    setInterval(() => this.poll(), POLL_MS);
    document.addEventListener("visibilitychange", () => this.seen());
    NARROW.addEventListener("change", () => this.arrange());
  }

  /** What changes without an event: nodes and ordinary pods, and with them why something waits. */
  poll() {
    if (!this.live || document.hidden) return;
    this.states.ask();
    this.selection.askAgain();
    this.views.poll();
  }

  /** A page in the background has no connection; in the foreground it continues where it was. */
  seen() {
    if (document.hidden) {
      this.follower.stop();
      return;
    }
    this.follower.resume();
    this.poll();
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
    const shown = this.state ? ` The page shows the last known state, as of ${utc(this.state.as_of.time)}.` : "";
    this.faults.set(what, words, shown);
    this.timeline.mode(this.live, this.faults.stale, this.state !== null);
  }

  /** Show another moment; null: now. From one moment of the past to the next the browser keeps one entry. */
  go(at, { keepFault = false } = {}) {
    if (!keepFault) ["the moment", "the log"].forEach((name) => this.fault(name, ""));
    const next = at === null ? "" : String(at);
    if (next === this.address.now.at) this.states.ask(true); // the same moment: read it again
    else this.address.go({ at: next }, { replace: keepFault || (!this.live && at !== null) });
  }

  /** Show the cluster at another moment, from any view: the others are not about a moment. */
  visit(at) {
    if (this.address.now.view) this.address.go({ at: String(at), view: "" });
    else this.go(at);
  }

  /** The address has changed: by a link, a filter, the slider, or Back. */
  moved(next, before) {
    const chosen = CHOICES.some((name) => next[name] !== before[name]);
    const filtered = this.feed.wanted("x") !== "" && next.gang !== before.gang;
    if (chosen) {
      this.tree = null;
      this.selection.changed();
    }
    this.views.show(next);
    if (next.at === before.at) this.draw(); // else as soon as that moment was read
    if (chosen || next.at !== before.at) this.states.ask(true);
    if (filtered || next.at !== before.at || next.namespace !== before.namespace) this.events.ask(true);
    if (chosen && CHOICES.some((name) => next[name])) this.selection.detail.focus();
  }

  /** Read the page of events up to the point in time; the first time also the begin of the log, and follow it. */
  async readEvents() {
    const { at } = this;
    const parameters = this.wantedEvents();
    if (at !== null) {
      const position = /^\d+$/.test(at) ? Number(at) : null;
      if (position !== null) parameters.after = position + 1;
      else parameters.until = at;
    }
    const { body, position } = await this.page(parameters);
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
    const same = JSON.stringify(parameters) === this.asked; // read again only: earlier ones stay shown
    this.asked = JSON.stringify(parameters);
    const older = same ? this.feed.events.filter((event) => body.length && event.position < body.at(-1).position) : [];
    this.feed.show([...since.reverse(), ...body, ...older], this.feedWords(), { anew: !same });
    if (this.follower.position !== null) return;
    this.follower.start(position, body[0]?.position === position ? body[0] : null);
    this.states.ask(true); // the first time; later changes of the moment read the state themselves
  }

  /** Return a page of events; none where the log does not have the gang or the namespace. */
  async page(parameters) {
    try {
      return await ask("events", parameters);
    } catch (problem) {
      if (problem.status !== 404) throw problem;
      const { position } = await ask("events", { order: "newest", limit: 1 });
      return { body: [], position };
    }
  }

  wantedEvents() {
    const gang = this.feed.wanted(this.chosen.gang);
    return { order: "newest", limit: PAGE, gang, namespace: gang ? "" : this.chosen.namespace };
  }

  /** Read the events before those that are shown. */
  async readEarlier() {
    const { asked } = this;
    const before = this.feed.events.at(-1).position;
    try {
      const { body } = await ask("events", { ...this.wantedEvents(), after: before });
      if (asked === this.asked) this.feed.append(body, this.feedWords());
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      this.fault("the events", problem.message);
      this.events.ask();
    }
  }

  feedWords() {
    const { gang, namespace } = this.wantedEvents();
    const of = gang || (namespace && `namespace ${namespace}`);
    return `${this.live ? "live" : "up to the moment shown"}, newest first${of ? `, of ${of}` : ""}`;
  }

  fits(event) {
    const { gang, namespace } = this.wantedEvents();
    return (!gang || event.gang === gang) && (!namespace || event.gang.startsWith(`${namespace}/`));
  }

  advance(position) {
    this.head = Math.max(this.head, position);
    this.timeline.grow(this.head, this.live);
  }

  arrived(event) {
    this.advance(event.position);
    this.begin ||= event.time;
    this.views.arrived(event);
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
    this.address.go({ at: "" }, { replace: true });
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
    const [state, trees, fleet, tree] = await Promise.all([
      ask("state", { at: at ?? "" }),
      at === null ? ask("trees", { state: "refused" }) : null,
      at === null || this.fleet === null ? ask("nodes") : null,
      this.readTree(at),
    ]);
    if (at !== this.at) return;
    this.fleet = fleet?.body ?? this.fleet;
    this.refused = trees?.body.filter((tree) => tree.outcome === "refused").map(refusedRow) ?? [];
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
    if (this.arriving && CHOICES.some((name) => this.chosen[name])) this.selection.detail.focus();
    this.arriving = false;
  }

  draw() {
    const { state, fleet } = this;
    const past = state !== null && !this.shownLive;
    $("empty").hidden = this.address.now.view !== "" || past || Boolean(state?.gangs.length || this.refused.length) || this.feed.events.some((event) => event.gang);
    this.timeline.show(state && state.as_of, this.live, this.begin, state?.log.time);
    this.timeline.mode(this.live, this.faults.stale, state !== null);
    this.arrange();
    this.pictured = picture(state, fleet, past);
    this.topology.show(this.views.pictured(this.pictured, state), this.chosen);
    this.known = new Set(state?.gangs.map((gang) => gang.gang));
    const rows = [...(state?.gangs ?? []), ...this.refused];
    this.gangs.show(rows, this.chosen.gang || this.chosen.about, this.chosen, this.moment(past));
    this.strip.show(rows, this.chosen, this.pictured, past ? state.as_of.time : "");
    const notCurrent = fleet?.not_current_reason && !past ? [`The view of the cluster may be out of date: ${fleet.not_current_reason}`] : [];
    const limitations = past ? [...(state.limitations ?? []), "Nodes without a domain in the log are placed by their current labels; bars have the current capacity."] : notCurrent;
    $("limitations").replaceChildren(...limitations.map((text) => el("li", { text })));
    this.drawSelection();
  }

  /** Draw the map with other moves. @param resource of which they change the amounts; empty: any. */
  drawMoves(resource) {
    if (!this.pictured) return;
    this.topology.choose(resource);
    this.topology.show(this.views.pictured(this.pictured, this.state), this.chosen);
  }

  /** Put map and events below a short table, else beside it; in one column the answer stands above the map. */
  arrange() {
    const gangs = (this.state?.gangs.length ?? 0) + this.refused.length;
    const below = document.body.classList.contains("few");
    const few = !NARROW.matches && gangs < (below ? MANY : FEW);
    if (few === below) return;
    document.body.classList.toggle("few", few);
    $(few ? "content" : "side").append($("topology"), $("feed"));
    this.topology.arrange();
  }

  drawSelection() {
    const { state } = this;
    const past = state !== null && !this.shownLive;
    this.selection.draw({ state, tree: this.tree, pictured: this.pictured, past, now: this.moment(past) });
  }

  /** The moment that is shown, in milliseconds. */
  moment(past) {
    return past ? Date.parse(this.state.as_of.time) : Date.now();
  }
}

new App().start();
