// Create elements. Data from the service is set as text, never as markup.

export const $ = (id) => document.getElementById(id);

/** Create an element: properties that begin with "on" are listeners, "text" is its text, the rest attributes. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "text") made.textContent = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Set the text of an element if it differs, so that screen readers do not repeat it. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const WHOLE = 20; // characters of a name that is never cut
const TAIL = 10; // characters at its end that are shown even so: names of one family differ there

/** Write a name into an element. Where it is too long for its place it is cut before its end; the whole name is the title. */
export function setName(element, name) {
  if (element.textContent === name) return element;
  const letters = Array.from(name);
  const cut = letters.length > WHOLE;
  element.title = name;
  element.classList.toggle("cut", cut);
  if (element.matches("a")) element.ariaLabel = name; // not the two parts
  if (!cut) element.textContent = name;
  else element.replaceChildren(el("span", { class: "begin", text: letters.slice(0, -TAIL).join("") }), el("span", { class: "end", text: letters.slice(-TAIL).join("") }));
  return element;
}

// A copy has no line break between the parts of a name.
document.addEventListener("copy", (event) => {
  const selection = getSelection();
  if (![...document.querySelectorAll(".cut")].some((name) => selection.containsNode(name, true))) return;
  document.body.classList.add("copying");
  event.clipboardData.setData("text/plain", selection.toString());
  document.body.classList.remove("copying");
  event.preventDefault();
});

/** Set the width of a bar; through the object model, as the page's policy forbids style attributes. */
export function wide(element, share) {
  element.style.width = `${Math.max(0, Math.min(100, share * 100)).toFixed(2)}%`;
  return element;
}

/** Create a list of texts below a heading (null: none); null where there are no texts. */
export function textList(heading, texts, name = "plain") {
  if (!texts.length) return null;
  return el("div", {}, heading, el("ul", { class: name }, ...texts.map((text) => el("li", { text }))));
}

/** Write into `box` how much of a list is shown, with a button for more of it while there is more. */
export function portion(box, shown, total, step, onMore) {
  if (shown >= total) {
    box.replaceChildren();
    return;
  }
  const text = `${shown} of ${total} shown.`;
  const words = `Show ${Math.min(step, total - shown)} more`;
  let [line, button] = box.children;
  if (button === undefined) {
    [line, button] = [el("span"), el("button", { type: "button", class: "more" })];
    box.replaceChildren(line, " ", button);
  }
  setText(line, text);
  setText(button, words);
  button.onclick = onMore;
}

/** Replace the children of an element; the control that had the focus, by its place, has it afterwards. */
export function refill(box, ...parts) {
  const controls = () => [...box.querySelectorAll("a, button, input, select, summary, [tabindex]")];
  const place = controls().indexOf(document.activeElement);
  box.replaceChildren(...parts.filter(Boolean));
  if (place >= 0) (controls()[place] ?? box.querySelector("[tabindex]"))?.focus({ preventScroll: true });
}
