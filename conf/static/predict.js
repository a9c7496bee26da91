"use strict";

/* Predict the output: the output opens once the reader has typed or chosen. The key is the output
 * itself, as it stands on the page. */

{
  const squeeze = (text) => text.replace(/\s+/g, "").replaceAll('"', "'");

  /** Return the texts that say what was printed: of a traceback its end, or the exception's type. */
  function keys(printed) {
    const raised = printed.match(/^Traceback .*\n(?:[ \t].*\n)*([\s\S]*)/);
    return raised ? [raised[1], raised[1].split(":")[0]] : [printed];
  }

  /** Tell whether the reader said what was printed; `...` in it stands for anything. */
  function isRight(said, printed) {
    return keys(printed).some((key) => {
      const exact = squeeze(key).replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
      return new RegExp(`^${exact.replaceAll("\\.\\.\\.", ".*")}$`).test(squeeze(said));
    });
  }

  for (const block of document.querySelectorAll(".predict")) {
    const output = block.querySelector(".predict-output");
    const printed = output.querySelector("pre").textContent.trimEnd();
    output.classList.add("locked");

    const form = block.querySelector("form");
    form?.addEventListener("submit", (event) => {
      event.preventDefault();
      const right = isRight(form.querySelector("input, textarea").value, printed);
      block.querySelector(".predict-verdict").textContent = right
        ? "Right."
        : "Not what it prints: compare.";
      output.classList.remove("locked");
      output.open = true;
    });

    for (const choice of block.querySelectorAll(".predict-choice")) {
      choice.addEventListener("toggle", () => {
        if (!choice.open) return;
        output.classList.remove("locked");
        if (choice.classList.contains("right")) output.open = true;
      });
    }
  }
}
