// Draws the diagrams of a page, and draws them again when the reader changes between light and dark.
(function () {
  "use strict";
  const system = matchMedia("(prefers-color-scheme: dark)");
  let drawn = null;

  const colours = {
    dark: { clusterBkg: "#1c1f22", clusterBorder: "#555", edgeLabelBackground: "#2a2d31" },
    default: { clusterBkg: "#f8f9fb", clusterBorder: "#bbb", edgeLabelBackground: "#eeebee" },
  };

  function theme() {
    const chosen = document.body.dataset.theme || "auto";
    const dark = chosen === "dark" || (chosen === "auto" && system.matches);
    return dark ? "dark" : "default";
  }

  async function draw() {
    if (drawn === theme()) return;
    drawn = theme();
    mermaid.initialize({ startOnLoad: false, theme: drawn, themeVariables: colours[drawn], securityLevel: "strict" });
    let number = 0;
    for (const place of document.querySelectorAll("pre.diagram")) {
      place.dataset.source = place.dataset.source || place.textContent;
      try {
        const { svg } = await mermaid.render("diagram-" + number++, place.dataset.source);
        place.innerHTML = svg;
        place.classList.add("drawn");
      } catch (error) {
        console.error("a diagram does not parse:", error.message);
      }
    }
  }

  document.addEventListener("DOMContentLoaded", function () {
    draw();
    new MutationObserver(draw).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
    system.addEventListener("change", draw);
  });
})();
