// A button in each block of commands that copies it, without the prompts and what a command printed.

for (const block of document.querySelectorAll("div.highlight")) {
  const text = block.querySelector("pre");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy-block";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const lines = text.textContent.trimEnd().split("\n");
    const commands = lines.filter((line) => line.startsWith("$ ")).map((line) => line.slice(2));
    try {
      await navigator.clipboard.writeText((commands.length ? commands : lines).join("\n"));
      button.textContent = "Copied";
    } catch { // a page without TLS may not write there: the text is selected, so that a key copies it
      getSelection().selectAllChildren(text);
      button.textContent = "Selected: Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  block.append(button);
}
