// What does not work now, in words, above everything else.

import { $, el } from "./dom.js";

const STALE = ["the state", "the events"]; // without these the page shows what may be out of date

export class Faults {
  constructor() {
    this.words = new Map(); // what fails -> text
  }

  /** Whether what is shown may be out of date. */
  get stale() {
    return STALE.some((name) => this.words.has(name));
  }

  /** Set what is wrong with something, or that it works again (no words); `shown`: what the page shows meanwhile. */
  set(what, words, shown) {
    if (words) this.words.set(what, words);
    else this.words.delete(what);
    const box = $("fault");
    box.hidden = this.words.size === 0;
    document.body.classList.toggle("stale", this.stale);
    const lines = [...this.words].map(([name, text]) => {
      if (name === "the log") return text;
      if (name === "the moment") return `Cannot show that moment: ${text}`;
      return `/v1 does not give ${name}: ${text}. Trying again.${shown}`;
    });
    if (box.textContent !== lines.join("")) box.replaceChildren(...lines.map((line) => el("span", { text: line })));
  }
}
