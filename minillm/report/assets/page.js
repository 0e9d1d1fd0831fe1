(function () {
  "use strict";
  var data = JSON.parse(document.getElementById("data").textContent);
  var MARGIN = 84, ROW = 18, HEAD = 20, CELL = 22;
  var state = { run: 0, pass: 0, row: 0, timer: null };
  var cursors = [];
  var byId = function (id) { return document.getElementById(id); };

  // Reading the data.

  function column(differences, length) {
    var values = new Array(length), sum = 0;
    for (var i = 0; i < length; i++) { sum += differences.length ? differences[i] : 0; values[i] = sum; }
    return values;
  }

  function readStretches(numbers) {
    var all = [], last = {};
    for (var i = 0; i < numbers.length; i += 7) {
      var row = numbers[i], first = (last[row] || 0) + numbers[i + 1];
      last[row] = first + numbers[i + 2];
      all.push({ row: row, first: first, last: last[row], kind: numbers[i + 3],
        start: numbers[i + 4], tokens: numbers[i + 5], padding: numbers[i + 6] });
    }
    return all;
  }

  function readRun(run) {
    var n = run.passes;
    run.padded = column(run.padded, n);
    run.start = column(run.start, n);
    run.length = column(run.length, n);
    run.spent = run.spent.map(function (each) { return column(each, n); });
    Object.keys(run.counts).forEach(function (name) { run.counts[name] = column(run.counts[name], n); });
    run.stretches = readStretches(run.stretches);
    run.byRow = run.rows.map(function () { return []; });
    run.stretches.forEach(function (stretch) { run.byRow[stretch.row].push(stretch); });
    var moments = [];
    for (var i = 0; i < run.moments.length; i += 3) {
      moments.push({ pass: run.moments[i], row: run.moments[i + 1], kind: run.moments[i + 2] });
    }
    run.moments = moments;
    run.reasons = {};
    run.ends.forEach(function (end) { run.reasons[end[0]] = end[1]; });
    run.end = run.start[n - 1] + run.length[n - 1];
  }

  data.runs.forEach(readRun);
  var clockEnd = Math.max.apply(null, data.runs.map(function (run) { return run.end; }));
  function current() { return data.runs[state.run]; }

  // Drawing.

  function element(name, attributes, parent, words) {
    var made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (var key in attributes) made.setAttribute(key, attributes[key]);
    if (words !== undefined) made.textContent = words;
    if (parent) parent.appendChild(made);
    return made;
  }

  function picture(holder, height) {
    var width = Math.max(280, holder.clientWidth);
    var svg = element("svg", { viewBox: "0 0 " + width + " " + height, height: height, "aria-hidden": "true" });
    holder.replaceChildren(svg);
    return { svg: svg, width: width };
  }

  function short(name, most) { return name.length > most ? name.slice(0, most - 1) + "\u2026" : name; }

  // A staircase through values at the edges x; closed down to the bottom, or open.
  function stairs(x, values, y, closed) {
    var path = closed ? "M" + x(0) + "," + y(0) : "";
    for (var i = 0; i < values.length; i++) {
      path += (path ? "L" : "M") + x(i) + "," + y(values[i]) + "H" + x(i + 1);
    }
    return closed ? path + "V" + y(0) + "Z" : path;
  }

  function round(value) { return Math.round(value * 10) / 10; }

  function drawRace() {
    data.runs.forEach(function (run, place) {
      var button = byId("race").children[place];
      var drawn = picture(button, 36), svg = drawn.svg, width = drawn.width;
      button.setAttribute("aria-current", place === state.run);
      element("text", { x: 0, y: 22, class: "name" }, svg, short(run.policy, 13));
      var most = Math.max.apply(null, run.counts.running.map(function (n, i) { return n + run.counts.waiting[i]; }));
      var x = function (i) {
        var t = i < run.passes ? run.start[i] : run.end;
        return round(MARGIN + (width - MARGIN) * t / clockEnd);
      };
      var y = function (value) { return round(32 - 28 * value / Math.max(1, most)); };
      var both = run.counts.running.map(function (n, i) { return n + run.counts.waiting[i]; });
      element("path", { d: stairs(x, both, y, true), class: "back" }, svg);
      element("path", { d: stairs(x, run.counts.running, y, true), class: "area" }, svg);
      element("path", { d: "M" + MARGIN + ",32.5H" + width, class: "axis" }, svg);
      cursor(svg, 2, 34, function () { return MARGIN + (width - MARGIN) * current().start[state.pass] / clockEnd; });
    });
  }

  // A line that follows the pass.
  function cursor(svg, top, bottom, where) {
    var line = element("path", { class: "cursor" }, svg);
    cursors.push(function () { line.setAttribute("d", "M" + round(where()) + "," + top + "V" + bottom); });
  }

  function shownPasses(width) {
    var count = Math.max(8, Math.min(current().passes, Math.floor((width - MARGIN) / CELL)));
    var first = Math.max(0, Math.min(state.pass - Math.floor(count * 0.6), current().passes - count));
    return { first: first, count: count };
  }

  function drawGrid() {
    var run = current(), drawn = picture(byId("grid"), HEAD + ROW * run.rows.length + 4), svg = drawn.svg;
    var shown = shownPasses(drawn.width), first = shown.first, last = first + shown.count;
    var size = (drawn.width - MARGIN - 2) / shown.count;
    var x = function (pass) { return round(MARGIN + (pass - first) * size); };
    run.view = { first: first, size: size, last: Math.min(last, run.passes) };
    for (var pass = first; pass < run.view.last; pass++) {
      if (pass % 5 === 0) element("text", { x: x(pass + 0.5), y: 13, "text-anchor": "middle", class: "soft" }, svg, pass);
    }
    run.rows.forEach(function (row, place) {
      element("text", { x: MARGIN - 6, y: HEAD + ROW * place + 13, "text-anchor": "end" }, svg, short(row[0], 12));
    });
    var groups = [element("g", {}, svg), element("g", { class: "future" }, svg)];
    run.stretches.forEach(function (stretch) {
      if (stretch.last <= first || stretch.first >= last) return;
      var now = state.pass + 1;
      bar(groups[0], stretch, Math.max(first, stretch.first), Math.min(last, stretch.last, now), x);
      bar(groups[1], stretch, Math.max(first, stretch.first, now), Math.min(last, stretch.last), x);
    });
    var lines = "";
    for (var edge = first; edge <= run.view.last; edge++) lines += "M" + x(edge) + "," + HEAD + "v" + ROW * run.rows.length;
    element("path", { d: lines, class: "separator" }, svg);
    run.moments.forEach(function (moment) {
      if (moment.pass < first || moment.pass >= last) return;
      var look = data.moments[moment.kind];
      element("text", { x: x(moment.pass + 0.5), y: HEAD + ROW * moment.row + 13, "text-anchor": "middle", class: "sign",
        style: "fill:" + look[2] }, moment.pass <= state.pass ? svg : groups[1], look[1]);
    });
    var tall = ROW * run.rows.length;
    element("rect", { x: x(state.pass), y: HEAD - 1, width: round(size), height: tall + 2, class: "now" }, svg);
    element("rect", { x: x(state.pass) - 1.5, y: HEAD + ROW * state.row, width: round(size) + 3, height: ROW,
      class: "now" }, svg);
  }

  function bar(group, stretch, from, to, x) {
    if (from >= to) return;
    var height = (ROW - 2) * data.activities[stretch.kind][1];
    var top = HEAD + ROW * stretch.row + (ROW - height) / 2;
    var held = data.activities[stretch.kind][0] === "held row";
    var padded = held ? 0 : height * stretch.padding / Math.max(1, stretch.padding + stretch.tokens);
    box(group, x(from), top + padded, x(to), height - padded, stretch.kind);
    if (padded) box(group, x(from), top, x(to), padded, data.spent[5]);
  }

  function box(group, left, top, right, height, kind) {
    element("rect", { x: left, y: round(top), width: round(right - left), height: round(height),
      fill: "url(#fill" + kind + ")" }, group);
  }

  function drawCharts() {
    var run = current(), counts = run.counts;
    var all = counts.waiting.concat(counts.running, counts.swapped);
    chart(byId("queues"), Math.max.apply(null, all), function (svg, x, y) {
      ["waiting", "running", "swapped"].forEach(function (name) {
        element("path", { d: stairs(x, counts[name], y, false), class: "line " + name }, svg);
      });
    });
    chart(byId("memory"), run.capacity, function (svg, x, y, width) {
      element("path", { d: stairs(x, counts.reserved_tokens, y, true), class: "back" }, svg);
      element("path", { d: stairs(x, counts.filled_tokens, y, true), class: "area" }, svg);
      element("path", { d: "M36," + y(run.capacity) + "H" + width, class: "limit" }, svg);
    });
  }

  function chart(holder, most, draw) {
    var drawn = picture(holder, 130), width = drawn.width, run = current();
    var x = function (i) { return round(36 + (width - 36) * i / run.passes); };
    var y = function (value) { return round(120 - 108 * value / Math.max(1, most)); };
    draw(drawn.svg, x, y, width);
    element("path", { d: "M36,120.5H" + width, class: "axis" }, drawn.svg);
    element("text", { x: 32, y: 16, "text-anchor": "end", class: "soft" }, drawn.svg, most);
    element("text", { x: 32, y: 124, "text-anchor": "end", class: "soft" }, drawn.svg, 0);
    cursor(drawn.svg, 6, 124, function () { return x(state.pass + 0.5); });
    drawn.svg.style.cursor = "pointer";
    drawn.svg.addEventListener("click", function (event) {
      var where = event.clientX - drawn.svg.getBoundingClientRect().left;
      go(Math.floor((where - 36) / (width - 36) * run.passes));
    });
  }

  function drawPass() {
    var run = current(), holder = byId("pass"), drawn = picture(holder, 26), pass = state.pass;
    var total = run.spent.reduce(function (sum, each) { return sum + each[pass]; }, 0), at = 0, words = [];
    run.spent.forEach(function (each, place) {
      if (!each[pass]) return;
      var right = at + drawn.width * each[pass] / total;
      box(drawn.svg, round(at), 2, round(right), 22, data.spent[place]);
      at = right;
      words.push(each[pass] + " " + data.activities[data.spent[place]][0]);
    });
    var c = run.counts;
    var rows = [["tokens", total + (words.length ? ": " + words.join(", ") : "")],
      ["layout", run.padded[pass] ? "padded" : "ragged"],
      ["attention reads", c.context_tokens[pass] + " cached tokens"],
      ["queues", c.running[pass] + " running, " + c.waiting[pass] + " waiting, " + c.swapped[pass] + " swapped"],
      ["KV cache", c.filled_tokens[pass] + " filled, " + c.reserved_tokens[pass] + " reserved of " + run.capacity],
      ["blocks moved", c.swapped_out[pass] + " out, " + c.swapped_in[pass] + " in, " + c.copied[pass] + " copied"]];
    var list = document.createElement("dl");
    list.className = "count";
    rows.forEach(function (row) {
      ["dt", "dd"].forEach(function (tag, i) {
        list.appendChild(document.createElement(tag)).textContent = row[i];
      });
    });
    holder.appendChild(list);
  }

  function drawLegend() {
    var run = current(), kinds = {};
    run.stretches.forEach(function (stretch) { kinds[stretch.kind] = true; });
    if (run.spent[5].some(Boolean)) kinds[data.spent[5]] = true;
    var legend = byId("legend");
    legend.replaceChildren();
    data.activities.forEach(function (activity, kind) {
      if (kinds[kind]) key(legend, activity[0], function (svg) {
        element("rect", { width: 18, height: 12, fill: "url(#fill" + kind + ")" }, svg);
      });
    });
    data.moments.forEach(function (moment, kind) {
      if (run.moments.some(function (each) { return each.kind === kind; })) key(legend, moment[0], function (svg) {
        element("text", { x: 4, y: 11, class: "sign", style: "fill:" + moment[2] }, svg, moment[1]);
      });
    });
    if (run.rows.length < run.sequences) {
      legend.appendChild(document.createElement("span")).textContent =
        run.rows.length + " of " + run.sequences + " sequences drawn";
    }
  }

  function key(legend, words, draw) {
    var item = legend.appendChild(document.createElement("span"));
    draw(element("svg", { width: 18, height: 12, "aria-hidden": "true" }, item));
    item.appendChild(document.createTextNode(words));
  }

  // In words.

  function seconds(microseconds) { return (microseconds / 1e6).toPrecision(4) + " s"; }

  function describe(row, pass) {
    var run = current(), request = run.rows[row], words = request[0] + ", pass " + pass + ": ";
    var stretch = run.byRow[row].find(function (each) { return each.first <= pass && pass < each.last; });
    if (!stretch) words += run.start[pass] < request[1] ? "not arrived" : "ended";
    else words += data.activities[stretch.kind][0];
    if (stretch && stretch.tokens) {
      var from = stretch.start + (pass - stretch.first) * stretch.tokens, to = from + stretch.tokens - 1;
      words += from === to ? ", token " + from : ", tokens " + from + " to " + to;
      words += " (" + (to + 1) + " in the cache after it)";
    }
    if (stretch && stretch.padding) words += ", " + stretch.padding + " computed for nobody";
    run.moments.forEach(function (moment) {
      if (moment.row === row && moment.pass === pass) words += ", " + data.moments[moment.kind][0];
    });
    words += ". Arrived at " + seconds(request[1]) + ", prompt of " + request[2] + ", at most " + request[3] + " more";
    return words + (run.reasons[row] ? "; ended by " + run.reasons[row] + "." : ".");
  }

  function say() {
    var run = current(), pass = state.pass, from = run.start[pass];
    byId("moment").textContent = "pass " + pass + " of " + (run.passes - 1) + ", " + seconds(from) + " to " +
      seconds(from + run.length[pass]);
    byId("slider").setAttribute("aria-valuetext", byId("moment").textContent);
    byId("details").textContent = run.rows.length ? describe(state.row, pass) : "";
  }

  // Doing.

  // What does not change from pass to pass.
  function drawRun() {
    cursors = [];
    drawRace();
    drawLegend();
    drawCharts();
  }

  function drawNow() {
    drawGrid();
    drawPass();
    cursors.forEach(function (move) { move(); });
    say();
  }

  function go(pass) {
    state.pass = Math.max(0, Math.min(current().passes - 1, pass));
    byId("slider").value = state.pass;
    drawNow();
  }

  function choose(place, microseconds) {
    state.run = place;
    var run = current(), pass = 0;
    state.row = Math.min(state.row, run.rows.length - 1);
    while (pass < run.passes - 1 && run.start[pass + 1] <= microseconds) pass++;
    byId("slider").max = run.passes - 1;
    Array.from(byId("tabs").children).forEach(function (tab, i) {
      tab.setAttribute("aria-selected", i === place);
      tab.tabIndex = i === place ? 0 : -1;
    });
    byId("run").setAttribute("aria-labelledby", "tab" + place);
    drawRun();
    go(pass);
  }

  function stop() {
    clearInterval(state.timer);
    state.timer = null;
    byId("play").textContent = "\u25b6";
    byId("play").setAttribute("aria-label", "play");
  }

  function play() {
    if (state.timer) return stop();
    if (state.pass === current().passes - 1) go(0);
    byId("play").textContent = "\u275a\u275a";
    byId("play").setAttribute("aria-label", "pause");
    state.timer = setInterval(function () {
      if (state.pass === current().passes - 1) return stop();
      go(state.pass + 1);
      followRows();
    }, 300);
  }

  function step(by) { stop(); go(state.pass + by); }

  function scrollTo(row) {
    var top = HEAD + ROW * row, grid = byId("grid");
    if (top < grid.scrollTop + HEAD) grid.scrollTop = top - HEAD;
    if (top + ROW > grid.scrollTop + grid.clientHeight) grid.scrollTop = top + ROW - grid.clientHeight;
  }

  // Brings the rows that are computed in this pass into sight, the last one first.
  function followRows() {
    var rows = current().stretches.filter(function (stretch) {
      return stretch.tokens && stretch.first <= state.pass && state.pass < stretch.last;
    }).map(function (stretch) { return stretch.row; });
    if (!rows.length) return;
    scrollTo(Math.max.apply(null, rows));
    scrollTo(Math.min.apply(null, rows));
  }

  function under(event) {
    var run = current(), box = byId("grid").getBoundingClientRect();
    var pass = run.view.first + Math.floor((event.clientX - box.left - MARGIN) / run.view.size);
    var row = Math.floor((event.clientY - box.top + byId("grid").scrollTop - HEAD) / ROW);
    var inside = event.clientX - box.left >= MARGIN && row >= 0 && row < run.rows.length && pass < run.view.last;
    return inside ? { row: row, pass: pass } : null;
  }

  function build() {
    data.runs.forEach(function (run, place) {
      var tab = byId("tabs").appendChild(document.createElement("button"));
      tab.type = "button";
      tab.id = "tab" + place;
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", "run");
      tab.textContent = run.policy;
      tab.addEventListener("click", function () { stop(); choose(place, current().start[state.pass]); });
      var race = byId("race").appendChild(document.createElement("button"));
      race.type = "button";
      race.setAttribute("aria-label", "look into " + run.policy);
      race.addEventListener("click", function (event) {
        var left = race.getBoundingClientRect().left + MARGIN, wide = race.clientWidth - MARGIN;
        var share = event.detail ? (event.clientX - left) / wide : 0;
        stop();
        choose(place, share > 0 ? share * clockEnd : current().start[state.pass]);
      });
    });
    byId("tabs").addEventListener("keydown", function (event) {
      var by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      stop();
      choose((state.run + by + data.runs.length) % data.runs.length, current().start[state.pass]);
      byId("tabs").children[state.run].focus();
    });
    byId("slider").addEventListener("input", function () { stop(); go(+byId("slider").value); followRows(); });
    byId("play").addEventListener("click", play);
    byId("back").addEventListener("click", function () { step(-1); });
    byId("next").addEventListener("click", function () { step(1); });
    byId("grid").addEventListener("keydown", function (event) {
      var by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!by) return;
      event.preventDefault();
      state.row = Math.max(0, Math.min(current().rows.length - 1, state.row + by[1]));
      step(by[0]);
      scrollTo(state.row);
    });
    byId("grid").addEventListener("click", function (event) {
      var found = under(event);
      if (!found) return;
      stop();
      state.row = found.row;
      go(found.pass);
    });
    byId("grid").addEventListener("mousemove", function (event) {
      var found = under(event), tip = byId("tip");
      tip.hidden = !found;
      if (!found) return;
      tip.textContent = describe(found.row, found.pass);
      tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + "px";
      tip.style.top = Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 8) + "px";
    });
    byId("grid").addEventListener("mouseleave", function () { byId("tip").hidden = true; });
    window.addEventListener("resize", function () { drawRun(); drawNow(); });
  }

  build();
  choose(0, 0);
})();
