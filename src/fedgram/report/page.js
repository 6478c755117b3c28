"use strict";
// Sorts tables, hides methods, zooms curves, and loads the page of a running study again.
// Without this script everything can be read as it stands.

const made = (name, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
};

// Tables: a click on a header sorts, another one turns the order around.

for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, place) => {
    const cell = row.cells[place];
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  };
  const compare = (a, b, place, numeric, way) => {
    if (!numeric) {
      const [x, y] = [a, b].map((row) => row.cells[place].textContent);
      return way * x.localeCompare(y, "en", { numeric: true });
    }
    const [x, y] = [value(a, place), value(b, place)];
    return x === null || y === null ? (x === null) - (y === null) : way * (y - x);
  };
  heads.forEach((head, place) => {
    const button = made("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const body = table.tBodies[0];
      const numeric = [...body.rows].some((row) => value(row, place) !== null);
      const again = head.getAttribute("aria-sort") !== null;
      const back = again && head.dataset.way !== "back";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.dataset.way = back ? "back" : "first";
      head.setAttribute("aria-sort", numeric === back ? "ascending" : "descending");
      const rows = [...body.rows].sort((a, b) => compare(a, b, place, numeric, back ? -1 : 1));
      body.append(...rows);
    });
  });
}

// Methods: a box for each one shows or hides all that is drawn and written of it.

for (const section of document.querySelectorAll("section")) {
  const rows = [...section.querySelectorAll("table.headline tbody tr")];
  if (rows.length < 2) continue;
  const boxes = rows.map((row) => {
    const place = row.dataset.row;
    const box = made("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => {
      for (const part of section.querySelectorAll(`[data-row="${place}"]`)) {
        part.toggleAttribute("hidden", !box.checked);
      }
    });
    const color = made("span", { className: "fg", ariaHidden: "true" });
    color.append(made("span", { className: `s${place % 8}`, textContent: "\u25a0" }));
    const label = made("label", {}, box, color, ` ${row.cells[0].textContent}`);
    return { box, label };
  });
  const all = (checked) => {
    for (const { box } of boxes) {
      if (box.checked !== checked) box.click();
    }
  };
  const set = (name, checked) => {
    const button = made("button", { type: "button", textContent: name });
    button.addEventListener("click", () => all(checked));
    return button;
  };
  const legend = made("legend", { textContent: "Methods shown" });
  const labels = boxes.map(({ label }) => label);
  const filter = made("fieldset", { className: "filter" }, legend, ...labels);
  filter.append(set("all", true), set("none", false));
  section.querySelector(".lead").after(filter);
}

// Curves: a view is a part of the plot, in the coordinates in which it was drawn.

const STEPS = [1, 2, 5];

const linearTicks = (low, high) => {
  const rough = (high - low) / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([...STEPS, 10].find((one) => one * power >= rough * 0.999) ?? 10);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) {
    ticks.push(Number((k * step).toPrecision(12)));
  }
  return ticks;
};

const logTicks = (low, high) => {
  const some = high / low > 30 ? [1] : STEPS;
  const ticks = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p += 1) {
    ticks.push(...some.map((one) => Number((one * 10 ** p).toPrecision(3))));
  }
  const within = ticks.filter((tick) => tick >= low && tick <= high);
  return within.length > 1 ? within : linearTicks(low, high);
};

const written = {
  percent: (value) => String(Number((100 * value).toFixed(6))),
  compact: (value) => String(Number(value.toPrecision(6))),
  quantity: (value, unit = "") => {
    const prefixes = ["", "k", "M", "G", "T", "P", "E"];
    let scale = 0;
    while (scale < 6 && Math.abs(value) >= 999.5 * 1000 ** scale) scale += 1;
    const short = Number((value / 1000 ** scale).toPrecision(4));
    return `${short} ${prefixes[scale]}${unit}`.trim();
  },
  bytes: (value) => written.quantity(value, "B"),
};

class Axis {
  constructor(text, start, end) {
    const [low, high, kind, format] = text.split(" ");
    Object.assign(this, { low: Number(low), high: Number(high), kind, start, end });
    this.text = written[format];
  }

  value(place) {
    const share = (place - this.start) / (this.end - this.start);
    if (this.kind === "linear") return this.low + share * (this.high - this.low);
    const beyond = this.kind === "zero" ? Math.max((share - 0.1) / 0.9, 0) : share;
    return this.low * (this.high / this.low) ** beyond;
  }

  place(value) {
    if (this.kind === "linear") {
      const share = (value - this.low) / (this.high - this.low);
      return this.start + share * (this.end - this.start);
    }
    const share = Math.log(value / this.low) / Math.log(this.high / this.low);
    return this.start + (this.kind === "zero" ? 0.1 + 0.9 * share : share) * (this.end - this.start);
  }

  ticks(from, to) {
    const [low, high] = [this.value(from), this.value(to)];
    return this.kind === "linear" ? linearTicks(low, high) : logTicks(low, high);
  }
}

const MARK = 8; // room above the plot for a marker
const drawn = (name, attributes) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
};

class Plot {
  constructor(svg) {
    this.svg = svg;
    this.plot = svg.querySelector("svg.plot");
    const [x, y, width, height] = this.plot.getAttribute("viewBox").split(" ").map(Number);
    this.box = { left: x, right: x + width, top: y + MARK, low: y + height };
    this.x = new Axis(svg.dataset.x, this.box.left, this.box.right);
    this.y = new Axis(svg.dataset.y, this.box.low, this.box.top);
    this.groups = ["xticks", "yticks"].map((name) => svg.querySelector(`.${name}`));
    this.first = this.groups.map((group) => [...group.childNodes]);
    this.view = this.box;
    this.all = { ...this.box };
    if (svg.dataset.low !== undefined) this.all.low = this.y.place(Number(svg.dataset.low)) + 12;
  }

  get visible() { return this.svg.getClientRects().length > 0; }

  get zoomed() { return this.view !== this.box; }

  reset() { this.show(this.box); }

  // Half of it, or twice as much; from the plot as it was drawn out to its lowest point. High
  // accuracies are what is compared: the part above the middle stays in sight.
  zoom(factor) {
    const { left, right, top, low } = this.view;
    if (factor > 1 && !this.zoomed) return this.show(this.all);
    const [x, half] = [(left + right) / 2, (factor * (right - left)) / 2];
    const start = top + 0.25 * (1 - factor) * (low - top);
    const next = { left: x - half, right: x + half, top: start, low: start + factor * (low - top) };
    const whole = next.right - next.left >= this.box.right - this.box.left;
    return whole ? this.reset() : this.show(next);
  }

  move(across, down) {
    const { left, right, top, low } = this.view;
    const [x, y] = [(across * (right - left)) / 4, (down * (low - top)) / 4];
    if (this.zoomed) this.show({ left: left + x, right: right + x, top: top + y, low: low + y });
  }

  // Shows a view; it stays within what there is, and does not become smaller than a pixel.
  show(view) {
    const within = (from, to, first, last) => {
      const size = Math.max(Math.min(to - from, last - first), 0.5);
      const start = Math.min(Math.max(from, first), last - size);
      return [start, start + size];
    };
    const kept = view === this.box ? view : {};
    if (view !== this.box) {
      [kept.left, kept.right] = within(view.left, view.right, this.box.left, this.box.right);
      [kept.top, kept.low] = within(view.top, view.low, this.box.top, this.all.low);
    }
    this.view = kept;
    this.draw();
  }

  draw() {
    const { box, view } = this;
    const a = (box.right - box.left) / (view.right - view.left);
    const d = (box.low - box.top) / (view.low - view.top);
    const [e, f] = [box.left - a * view.left, box.top - d * view.top];
    for (const shape of this.plot.querySelectorAll(".line, .reach, .whisker, .band")) {
      shape.setAttribute("transform", `matrix(${a} 0 0 ${d} ${e} ${f})`);
    }
    for (const mark of this.plot.querySelectorAll(".mark, .strip, .ring")) {
      const at = mark.dataset.at?.split(" ") ?? [mark.getAttribute("cx"), mark.getAttribute("cy")];
      const [x, y] = at.map(Number);
      mark.setAttribute("transform", `translate(${a * x + e - x} ${d * y + f - y})`);
    }
    const [across, up] = this.groups;
    if (this.zoomed) {
      const x = this.x.ticks(view.left, view.right).map((value) => [value, a * this.x.place(value) + e]);
      const y = this.y.ticks(view.low, view.top).map((value) => [value, d * this.y.place(value) + f]);
      across.replaceChildren(...this.below(x));
      up.replaceChildren(...this.beside(y));
    } else {
      this.groups.forEach((group, k) => group.replaceChildren(...this.first[k]));
    }
    this.svg.querySelector(".below")?.toggleAttribute("hidden", this.zoomed);
  }

  below(ticks) {
    let end = -Infinity;
    const kept = ticks.filter(([value, at]) => {
      const half = 3.3 * this.x.text(value).length;
      const fits = at - half > end + 9;
      if (fits) end = at + half;
      return fits;
    });
    const d = kept.map(([, at]) => `M${at} ${this.box.low}v4`).join("");
    return [
      drawn("path", { d, class: "rule" }),
      ...kept.map(([value, x]) => this.label(x, this.box.low + 17, "middle", this.x.text(value))),
    ];
  }

  beside(ticks) {
    const { left, right } = this.box;
    return [
      drawn("path", { d: ticks.map(([, at]) => `M${left} ${at}H${right}`).join(""), class: "rule grid" }),
      ...ticks.map(([value, y]) => this.label(left - 6, y + 4, "end", this.y.text(value))),
    ];
  }

  label(x, y, anchor, text) {
    const node = drawn("text", { x, y, "text-anchor": anchor, class: "small" });
    node.textContent = text;
    return node;
  }

  // From the screen to the view.
  at(event) {
    const point = new DOMPoint(event.clientX, event.clientY);
    const { x, y } = point.matrixTransform(this.svg.getScreenCTM().inverse());
    return { x, y };
  }

  inside({ x, y }) {
    const { left, right, top, low } = this.box;
    return x >= left && x <= right && y >= top - MARK && y <= low;
  }

  // Lets a pointer select a part: of both axes, or of one where it moves along the other only.
  select() {
    let from = null;
    let frame = null;
    const ends = (event) => {
      const { box } = this;
      const to = this.at(event);
      const limited = (value, low, high) => Math.min(Math.max(value, low), high);
      const xs = [from.x, limited(to.x, box.left, box.right)].sort((p, q) => p - q);
      const ys = [from.y, limited(to.y, box.top, box.low)].sort((p, q) => p - q);
      const [wide, high] = [xs[1] - xs[0] > 6, ys[1] - ys[0] > 6];
      return wide || high ? [wide ? xs : [box.left, box.right], high ? ys : [box.top, box.low]] : null;
    };
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch" || !this.inside(this.at(event))) return;
      from = this.at(event);
      frame = this.svg.appendChild(drawn("rect", { class: "selected" }));
      this.svg.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    this.svg.addEventListener("pointermove", (event) => {
      const found = from && ends(event);
      if (!found) return;
      const [[x, right], [y, low]] = found;
      const size = { x, y, width: right - x, height: low - y };
      for (const [key, value] of Object.entries(size)) frame.setAttribute(key, value);
    });
    const done = (event) => {
      const found = from && event.type === "pointerup" && ends(event);
      from = null;
      frame?.remove();
      if (!found) return;
      const { box, view } = this;
      const a = (view.right - view.left) / (box.right - box.left);
      const d = (view.low - view.top) / (box.low - box.top);
      const [[x0, x1], [y0, y1]] = found;
      this.show({
        left: view.left + a * (x0 - box.left),
        right: view.left + a * (x1 - box.left),
        top: view.top + d * (y0 - box.top),
        low: view.top + d * (y1 - box.top),
      });
    };
    this.svg.addEventListener("pointerup", done);
    this.svg.addEventListener("pointercancel", done);
    this.svg.addEventListener("dblclick", () => this.reset());
  }
}

const figures = [];
for (const figure of document.querySelectorAll("figure:has(svg[data-x] .plot)")) {
  const plots = [...figure.querySelectorAll("svg[data-x]")].map((svg) => new Plot(svg));
  plots.forEach((plot) => plot.select());
  const act = (what) => plots.filter((plot) => plot.visible).forEach(what);
  const button = (text, label, what) => {
    const one = made("button", { type: "button", textContent: text, title: label, ariaLabel: label });
    one.addEventListener("click", () => act(what));
    return one;
  };
  const bar = made(
    "div",
    { className: "zoom", role: "group", ariaLabel: "Zoom" },
    button("+", "Zoom in (or select a part of the plot with the pointer)", (plot) => plot.zoom(0.5)),
    button("\u2212", "Zoom out", (plot) => plot.zoom(2)),
    button("\u21ba", "Show the plot as it was drawn", (plot) => plot.reset()),
  );
  const keys = {
    ArrowLeft: (plot) => plot.move(-1, 0),
    ArrowRight: (plot) => plot.move(1, 0),
    ArrowUp: (plot) => plot.move(0, -1),
    ArrowDown: (plot) => plot.move(0, 1),
    Escape: (plot) => plot.reset(),
  };
  bar.addEventListener("keydown", (event) => {
    const what = keys[event.key];
    if (!what || !plots.some((plot) => plot.visible && plot.zoomed)) return;
    act(what);
    event.preventDefault();
  });
  figure.append(bar);
  figures.push(...plots);
}

// A running study: the page is loaded again, and looks as it was left.

if (document.body.dataset.again) {
  const key = `fedgram ${location.pathname}`;
  const parts = { open: "details", checked: "fieldset.filter input" };
  const all = (selector) => [...document.querySelectorAll(selector)];
  const keep = () => {
    const state = { y: scrollY };
    for (const [name, selector] of Object.entries(parts)) state[name] = all(selector).map((one) => one[name]);
    try { sessionStorage.setItem(key, JSON.stringify(state)); } catch { /* it is not allowed to */ }
  };
  try {
    const state = JSON.parse(sessionStorage.getItem(key)) ?? {};
    state.open?.forEach((open, k) => all(parts.open)[k]?.toggleAttribute("open", open));
    state.checked?.forEach((checked, k) => {
      const box = all(parts.checked)[k];
      if (box && box.checked !== checked) box.click();
    });
    if (state.y) scrollTo(0, state.y);
  } catch { /* nothing was kept */ }
  setInterval(() => {
    if (figures.some((plot) => plot.zoomed) || !getSelection().isCollapsed) return;
    keep();
    location.reload();
  }, 1000 * Number(document.body.dataset.again));
}
