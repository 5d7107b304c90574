// The bearer token: typed by the user when the service asks for one, kept until the tab is closed, never in an address.

import { $, setText } from "./dom.js";

const KEY = "gang-extender-token";
let typed = null; // the promise of a token while the form is shown

export function token() {
  return sessionStorage.getItem(KEY) ?? "";
}

/** Return a token other than the one that was refused: the one that is kept now, else the one that the user types. */
export function another(refused, reason) {
  const kept = token();
  if (kept && kept !== refused) return Promise.resolve(kept);
  setText($("sign-in-text"), reason);
  typed ??= shown().finally(() => { typed = null; });
  return typed;
}

/** Show the form until it has a token. */
function shown() {
  sessionStorage.removeItem(KEY);
  const form = $("sign-in");
  form.hidden = false;
  $("sign-out").hidden = true;
  $("token").focus();
  return new Promise((done) => {
    form.onsubmit = (submitted) => {
      submitted.preventDefault();
      const value = $("token").value.trim();
      if (!/^[\x21-\x7e]+$/.test(value)) {
        setText($("sign-in-text"), "A token has no blanks and no letters with accents.");
        return;
      }
      $("token").value = "";
      form.hidden = true;
      sessionStorage.setItem(KEY, value);
      $("sign-out").hidden = false;
      done(value);
    };
  });
}

/** Show the button that forgets the token, while there is one. */
export function start() {
  $("sign-out").hidden = token() === "";
  $("sign-out").addEventListener("click", () => {
    sessionStorage.removeItem(KEY);
    location.reload(); // nothing of what the token showed is left
  });
}
