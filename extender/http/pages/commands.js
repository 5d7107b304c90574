// What a user takes along of an object: commands to copy, and the object as YAML.

import { el } from "./dom.js";

const COPIED_MS = 1500;
const PLAIN = /^[A-Za-z][A-Za-z0-9 ._/-]*$/; // without a meaning of its own in YAML
const WORDS = /^(y|n|yes|no|on|off|true|false|null|~)$/i;

/** Return a value as YAML: lists and maps in blocks, texts quoted where they need it. */
export function yaml(value, indent = "") {
  if (value === null || value === undefined) return "null";
  if (typeof value === "string") return PLAIN.test(value) && !WORDS.test(value) && !value.endsWith(" ") ? value : JSON.stringify(value);
  if (typeof value !== "object") return String(value);
  const deeper = `${indent}  `;
  const entries = Array.isArray(value) ? value.map((part) => ["-", part]) : Object.entries(value).map(([name, part]) => [`${yaml(name)}:`, part]);
  if (!entries.length) return Array.isArray(value) ? "[]" : "{}";
  return entries.map(([head, part], index) => {
    const block = part !== null && typeof part === "object" && Object.keys(part).length > 0;
    const before = index || indent === "" ? indent : "";
    if (!block) return `${before}${head} ${yaml(part)}`;
    if (head === "-") return `${before}- ${yaml(part, deeper)}`;
    return `${before}${head}\n${deeper}${yaml(part, deeper)}`;
  }).join("\n");
}

/** Write a word for a shell. */
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** Return a text to copy, with its button. */
export function copyable(text) {
  const code = el("code", { text });
  const button = el("button", { type: "button", class: "copy", text: "Copy", "aria-label": `Copy ${text}`, onclick: () => copy(text, code, button) });
  return el("div", { class: "copyable" }, code, button);
}

async function copy(text, source, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // without TLS, or not allowed: the text is selected, so that a key copies it
    const range = document.createRange();
    range.selectNodeContents(source);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    done = false;
  }
  button.textContent = done ? "Copied" : "Selected: copy it with Ctrl+C";
  setTimeout(() => { button.textContent = "Copy"; }, COPIED_MS);
}

/**
 * Return the part of a selected object with its commands and its YAML.
 *
 * @param kind of Kubernetes. @param name NAMESPACE/NAME, or of a node its name. @param at position of the past; empty: now.
 * @param has what the service has of it; null: nothing more than the explanation.
 * @param builtin whether the cluster has groups of Kubernetes too: then the kind alone is ambiguous.
 */
export function takeAlong(kind, name, at, has, builtin = false) {
  const [namespace, alone] = name.includes("/") ? name.split("/") : ["", name];
  const object = namespace ? `${kind}/${namespace}/${alone}` : `${kind}/${alone}`;
  const place = namespace ? ` -n ${quoted(namespace)}` : "";
  const group = kind.endsWith("PodGroup") && !builtin ? "s.gang-extender.dev" : "";
  const lines = [
    `gang-extender explain ${quoted(object)}${at ? ` --at ${at}` : ""}`,
    `kubectl get ${kind.toLowerCase()}${group} ${quoted(alone)}${place} -o yaml`,
  ];
  if (kind.endsWith("PodGroup")) lines.push(`gang-extender history ${quoted(name)}`);
  const code = el("pre", { tabindex: "0", "aria-label": "YAML" });
  const button = el("button", { type: "button", class: "copy", text: "Copy", "aria-label": "Copy the YAML", onclick: () => copy(code.textContent, code, button) });
  const part = has ? el("div", { class: "yaml" }, el("p", { class: "quiet" }, "As the service has it; kubectl prints the object itself. ", button), code) : null;
  const box = el("details", { class: "take" }, el("summary", { text: has ? "Commands and YAML" : "Commands" }), ...lines.map(copyable), part);
  box.addEventListener("toggle", () => { if (has && box.open) code.textContent = yaml(has); });
  return box;
}
