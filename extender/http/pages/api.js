// Requests to /v1: single requests, the newest of many requests, and the stream of events; with the token, if there is one.

import { another, token } from "./token.js";

const RETRY_MS = 1000;
const RETRY_MAX_MS = 10000;
const FETCH_MS = 30000;
const SEND_MS = 120000; // a plan may take a minute, after others that wait
const REST_MS = 250;
const REST_MAX_MS = 10000;

/** An error with the status (0: no answer) and a text for people. */
export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function address(path, parameters) {
  const url = new URL(`../v1/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

/** Return the answer of a request and its position. Throws Problem. */
export function ask(path, parameters = {}) {
  return request(address(path, parameters), {}, FETCH_MS);
}

/** Send a body and return the answer, as `ask` does. */
export function send(path, body) {
  return request(address(path, {}), { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }, SEND_MS);
}

/** Send a request and return the answer; one that is refused for its token waits until the user has typed another one. */
async function fetched(url, options, signal) {
  for (;;) {
    const sent = token();
    const headers = sent ? { ...options.headers, Authorization: `Bearer ${sent}` } : options.headers;
    const answer = await fetch(url, { ...options, headers, signal: signal() });
    if (answer.status !== 401) return answer;
    await another(sent, await reason(answer));
  }
}

async function reason(answer) {
  try {
    return (await answer.json()).detail;
  } catch {
    return `HTTP ${answer.status}`;
  }
}

async function request(url, options, limitMs) {
  let answer;
  try {
    answer = await fetched(url, options, () => AbortSignal.timeout(limitMs));
  } catch (error) {
    throw new Problem(0, error.name === "TimeoutError" ? `no answer within ${limitMs / 1000} s` : "the service does not answer");
  }
  let body;
  try {
    body = await answer.json();
  } catch {
    throw new Problem(answer.ok ? 0 : answer.status, `HTTP ${answer.status}: the answer is not JSON`);
  }
  if (!answer.ok) throw new Problem(answer.status, body.detail || body.title || `HTTP ${answer.status}`);
  return { body, position: Number(answer.headers.get("X-Log-Position") || 0) };
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/**
 * Runs a function on request, one run at a time: requests during a run lead to one more run after it.
 * Between two runs it pauses four times as long as a run took, so that a large cluster is not queried all the time.
 */
export class Latest {
  constructor(work) {
    this.work = work;
    this.wanted = false;
    this.urgent = false;
    this.running = false;
    this.wake = () => {};
  }

  /** Request a run; `urgent`: the user waits for it, so there is no pause before it. */
  ask(urgent = false) {
    this.wanted = true;
    this.urgent ||= urgent;
    if (urgent) this.wake();
    if (!this.running) this.run();
  }

  async run() {
    this.running = true;
    while (this.wanted) {
      this.wanted = this.urgent = false;
      const began = performance.now();
      try {
        await this.work();
      } catch (error) {
        reportError(error); // a defect of this page; later requests still run
      }
      const rest = Math.min(Math.max(REST_MS, 4 * (performance.now() - began)), REST_MAX_MS);
      if (!this.urgent) await Promise.race([pause(rest), new Promise((go) => { this.wake = go; })]);
    }
    this.running = false;
  }
}

/**
 * Follows the log. When the stream breaks it begins again after the last event that arrived, so no event is missed
 * and none is repeated.
 */
export class Follower {
  /**
   * @param on `event(event)`, `link(state, text)` with state live | lost, and `gone(head, reason)`: the log does not have
   *   the events any more that this page has read, so everything must be read again.
   */
  constructor(on) {
    this.on = on;
    this.position = null; // of the last event that arrived
    this.last = null; // that event, if it is known
    this.source = null;
    this.waitMs = RETRY_MS;
    this.turn = 0; // changes with every start and stop, so that earlier callbacks do nothing
  }

  start(after, last = null) {
    this.stop();
    this.position = after;
    this.last = last;
    this.open();
  }

  stop() {
    this.turn += 1;
    this.source?.close();
    this.source = null;
  }

  resume() {
    if (this.position !== null && this.source === null) this.start(this.position, this.last);
  }

  open() {
    const turn = this.turn;
    const source = new AbortController();
    this.source = { close: () => source.abort() };
    this.read(turn, source.signal);
  }

  /** Read the stream to its end; an EventSource could not send the token. */
  async read(turn, signal) {
    let why = "";
    try {
      const where = address("events", { follow: "true", after: this.position });
      const answer = await fetched(where, { headers: { Accept: "text/event-stream" }, cache: "no-store" }, () => signal);
      if (!answer.ok) throw new Problem(answer.status, await reason(answer));
      if (turn !== this.turn) return;
      this.waitMs = RETRY_MS;
      this.on.link("live", "");
      for await (const { kind, data } of messages(answer.body)) {
        if (turn !== this.turn) return;
        if (kind === "problem") why = JSON.parse(data).detail;
        else this.received(JSON.parse(data));
      }
    } catch (problem) {
      if (problem.status !== undefined) why = problem.message;
      else if (!(problem instanceof TypeError) && problem.name !== "AbortError") reportError(problem); // a defect, not the network
    }
    if (turn === this.turn) this.again(turn, why);
  }

  received(event) {
    if (event.position <= this.position) return;
    this.position = event.position;
    this.last = event;
    this.on.event(event);
  }

  async again(turn, reason) {
    this.on.link("lost", reason || "the stream of events broke");
    while (turn === this.turn) {
      await pause(this.waitMs);
      if (turn !== this.turn) return;
      this.waitMs = Math.min(2 * this.waitMs, RETRY_MAX_MS);
      try {
        const { position } = await ask("events", { order: "newest", limit: 1 });
        const before = this.position - 1;
        const found = this.last && position > before ? await ask("events", { after: before, limit: 1 }) : null;
        if (turn !== this.turn) return;
        if (position < this.position) this.on.gone(position, "ends before the events that this page has read");
        else if (found && !same(found.body[0], this.last)) this.on.gone(position, `differs before event ${this.position}`);
        else this.open();
        return;
      } catch (problem) {
        this.on.link("lost", problem.message);
      }
    }
  }
}

/** The messages of a stream of server-sent events. */
async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let [rest, kind, data] = ["", "", ""];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = value.split("\n");
    lines[0] = rest + lines[0];
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (data) yield { kind, data };
        [kind, data] = ["", ""];
      } else if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
  }
}

/** Whether two events are the same: a log that lost its end may have grown again with other events. */
function same(one, other) {
  return one !== undefined && ["position", "time", "epoch", "type", "gang_uid"].every((name) => one[name] === other[name]);
}
