(function () {
  // Every picture of this content that has not come to life yet: equal ones may stand on one page.
  document.querySelectorAll('[data-minillm="NAME"]').forEach(function (root) {
    if (root.dataset.live) return;
    root.dataset.live = "1";
    var count = (window.minillmViews = (window.minillmViews || 0) + 1);
    var image = root.querySelector("img");
    var holder = document.createElement("div");
    var source = decodeURIComponent(image.src.slice(image.src.indexOf(",") + 1));
    holder.innerHTML = source.split("NAME").join("NAME-" + count);
    var svg = holder.firstChild;
    svg.style.background = svg.style.color = "";
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", image.alt);
    image.replaceWith(svg);
    var slider = root.querySelector("input");
    var label = root.querySelector("output");
    var button = root.querySelector("button");
    var seen = svg.querySelector("[data-seen]");
    var full = +seen.getAttribute("width");
    var timer = null;
    svg.querySelector("[data-all]").style.opacity = 0.2;
    slider.parentNode.style.display = "flex";
    function draw() {
      label.textContent = "pass " + slider.value;
      seen.setAttribute("width", (full * (+slider.value + 1)) / (+slider.max + 1));
    }
    function stop() {
      clearInterval(timer);
      timer = null;
      button.textContent = "\u25b6";
    }
    function step() {
      if (+slider.value >= +slider.max) return stop();
      slider.value = +slider.value + 1;
      draw();
    }
    slider.addEventListener("input", function () { stop(); draw(); });
    button.addEventListener("click", function () {
      if (timer) return stop();
      if (+slider.value >= +slider.max) slider.value = 0;
      draw();
      button.textContent = "\u275a\u275a";
      timer = setInterval(step, Math.max(40, Math.min(600, 20000 / (+slider.max + 1))));
    });
    draw();
  });
})();
