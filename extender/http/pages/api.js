// Asking /v1: single questions, the newest of many questions, and the stream of facts.

const RETRY_MS = 1000;
const RETRY_MAX_MS = 10000;
const FETCH_MS = 30000;
const REST_MS = 250;
const REST_MAX_MS = 10000;

/** What went wrong, with the status (0: no answer) and words for people. */
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

/** Ask; gives the answer and its position. Throws Problem. */
export async function ask(path, parameters = {}) {
  let answer;
  try {
    answer = await fetch(address(path, parameters), { signal: AbortSignal.timeout(FETCH_MS) });
  } catch (error) {
    throw new Problem(0, error.name === "TimeoutError" ? `no answer within ${FETCH_MS / 1000} s` : "the service does not answer");
  }
  let body;
  try {
    body = await answer.json();
  } catch {
    throw new Problem(answer.ok ? 0 : answer.status, `HTTP ${answer.status}: an answer that is no JSON`);
  }
  if (!answer.ok) throw new Problem(answer.status, body.detail || body.title || `HTTP ${answer.status}`);
  return { body, position: Number(answer.headers.get("X-Log-Position") || 0) };
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/**
 * Runs a piece of work whenever it is asked for, one at a time: what is asked for meanwhile is done once, after it.
 * Between two runs it rests four times as long as a run took, so that a large cluster is not asked all the time.
 */
export class Latest {
  constructor(work) {
    this.work = work;
    this.wanted = false;
    this.urgent = false;
    this.running = false;
    this.wake = () => {};
  }

  /** Ask for it; `urgent`: somebody waits for it, so it does not rest before. */
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
        reportError(error); // a defect of this page; what is asked for next is done all the same
      }
      const rest = Math.min(Math.max(REST_MS, 4 * (performance.now() - began)), REST_MAX_MS);
      if (!this.urgent) await Promise.race([pause(rest), new Promise((go) => { this.wake = go; })]);
    }
    this.running = false;
  }
}

/**
 * Follows the log. Whenever the stream breaks it begins anew behind the last fact that arrived, so no fact is
 * missed and none is given twice.
 */
export class Follower {
  /**
   * @param on `fact(fact)`, `link(state, words)` with state live | lost, and `gone(head, why)`: what this page has read
   *   is not in the log any more, so everything is to be read again.
   */
  constructor(on) {
    this.on = on;
    this.position = null; // of the last fact that arrived
    this.last = null; // that fact, where it is known
    this.source = null;
    this.waitMs = RETRY_MS;
    this.turn = 0; // changes with every start and stop: what was begun before does nothing any more
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
    const source = new EventSource(address("events", { follow: "true", after: this.position }));
    this.source = source;
    source.onopen = () => {
      this.waitMs = RETRY_MS;
      this.on.link("live", "");
    };
    source.onmessage = (message) => {
      if (turn !== this.turn) return;
      const fact = JSON.parse(message.data);
      if (fact.position <= this.position) return;
      this.position = fact.position;
      this.last = fact;
      this.on.fact(fact);
    };
    let told = "";
    source.addEventListener("problem", (message) => { told = JSON.parse(message.data).detail; });
    source.onerror = () => {
      source.close();
      if (turn === this.turn) this.again(turn, told);
    };
  }

  async again(turn, told) {
    this.on.link("lost", told || "the stream of facts broke");
    while (turn === this.turn) {
      await pause(this.waitMs);
      if (turn !== this.turn) return;
      this.waitMs = Math.min(2 * this.waitMs, RETRY_MAX_MS);
      try {
        const { position } = await ask("events", { order: "newest", limit: 1 });
        const before = this.position - 1;
        const found = this.last && position > before ? await ask("events", { after: before, limit: 1 }) : null;
        if (turn !== this.turn) return;
        if (position < this.position) this.on.gone(position, "ends before where this page has been");
        else if (found && !same(found.body[0], this.last)) this.on.gone(position, `is another one before fact ${this.position}`);
        else this.open();
        return;
      } catch (problem) {
        this.on.link("lost", problem.message);
      }
    }
  }
}

/** Say whether two facts are one: a log that lost its end may have grown past it since, with other facts. */
function same(one, other) {
  return one !== undefined && ["position", "time", "epoch", "type", "gang_uid"].every((name) => one[name] === other[name]);
}
