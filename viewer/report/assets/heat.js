/* The map of layers and passes: an image, drawn anew at each zoom from as many cells as it has pixels. */
"use strict";

const MEASURES = {
  update: { label: "Update", said: "time of an update", isLog: true },
  attend: { label: "Attend", said: "time of attention", isLog: true },
  upstream: { label: "Upstream", said: "time of what comes before the update", isLog: true },
  held: { label: "Held", said: "bytes held", isLog: false },
  moved: { label: "Written", said: "bytes written and copied", isLog: true },
  read: { label: "Read", said: "bytes that attention reads", isLog: false },
};
const FRAME = { left: 96, right: 20, top: 10, bottom: 72 };

kvtrace.Heat = class extends kvtrace.Plot {
  constructor(traces) {
    const shown = traces.filter((trace) => trace.heat);
    const rows = Math.max(...shown.map((trace) => trace.heat.rows.length));
    super("heat", FRAME.top + FRAME.bottom + Math.min(Math.max(rows * 18, 120), 560));
    Object.assign(this, { traces: shown, trace: shown[0], isLongest: false, cell: null });
    this.names = Object.keys(MEASURES).filter((name) => shown.some((trace) => trace.heat.planes[name]));
    this.measure = this.names[0];
    this.image = document.createElement("canvas");
    this.small = document.createElement("canvas");
    this.tip = document.getElementById("tip");
    this.addChoices();
    this.addZoom();
    this.addLegend();
    this.follow();
    this.draw();
  }

  addChoices() {
    if (this.traces.length > 1) {
      this.tools.append(kvtrace.choice("Trace", this.traces.map((trace, place) => [place, trace.name]), (place) => { this.trace = this.traces[place]; this.measured(this.measure); }));
    }
    this.choose = kvtrace.choice("Colour shows", this.names.map((name) => [name, MEASURES[name].label]), (name) => this.measured(name));
    this.tools.append(this.choose, kvtrace.toggle("Slowest in each column", (isOn) => { this.isLongest = isOn; this.draw(); }));
  }

  addLegend() {
    this.legend = kvtrace.element("div", { class: "scale" });
    this.field.before(this.legend);
  }

  measured(name) {
    this.measure = name;
    this.cell = null;
    this.draw();
    this.tabulate();
  }

  get plane() {
    const plane = this.trace.heat.planes[this.measure];
    return plane && ((this.isLongest && plane.max) || plane.mean);
  }

  get columns() {
    return this.trace.heat.places.length;
  }

  write(value) {
    return this.trace.heat.planes[this.measure]?.unit === "B" ? kvtrace.bytes(value) : kvtrace.micros(value);
  }

  /* Least and most of the colours, the same for all traces. */
  extent() {
    const samples = this.traces.flatMap((trace) => {
      const plane = trace.heat.planes[this.measure]?.mean;
      if (!plane) return [];
      const step = Math.max(1, Math.floor(plane.codes.length / 50000));
      return Array.from({ length: Math.ceil(plane.codes.length / step) }, (_, at) => plane.scale[plane.codes[at * step]]);
    });
    const positive = samples.filter((value) => value > 0);
    if (!positive.length) return [1, 2];
    const [low, high] = [kvtrace.quantile(positive, 0.01), kvtrace.quantile(positive, 0.995)];
    return MEASURES[this.measure].isLog ? [low, Math.max(high, low * 1.01)] : [0, high];
  }

  option(colours) {
    const { heat, name } = this.trace;
    const said = `${MEASURES[this.measure].said} by layer and forward pass, ${heat.rows.length} layers, ${this.columns} passes of ${name}. Use the arrow keys to move over cells.`;
    const hasPositions = heat.position && increases(heat.position);
    const label = (value) => this.label(Math.floor(value), hasPositions);
    this.span = this.extent();
    this.colours = colours;
    this.drawLegend();
    requestAnimationFrame(() => this.paint());
    return {
      ...basis(colours, said),
      tooltip: { show: false },
      grid: FRAME,
      xAxis: across(colours, hasPositions || heat.is_outside ? "token position" : "forward pass", { min: 0, max: Math.max(1, this.columns), minInterval: 1, axisLabel: { color: colours.soft, formatter: label, hideOverlap: true } }),
      yAxis: { ...axis(colours, { type: "category", data: heat.rows, inverse: true, splitLine: { show: false } }), axisTick: { show: false }, axisLabel: { color: colours.soft, width: 84, overflow: "truncate" } },
      dataZoom: zooms(colours, [0]),
      series: [{ type: "line", id: "cells", name: MEASURES[this.measure].label, data: [], silent: true }],
    };
  }

  label(column, hasPositions) {
    const { position, places } = this.trace.heat;
    if (column < 0 || column >= this.columns) return "";
    return kvtrace.count(hasPositions ? position[column] : places[column]);
  }

  drawLegend() {
    const bar = document.createElement("canvas");
    bar.width = 256;
    bar.height = 1;
    const context = bar.getContext("2d");
    SCALE.forEach(([red, green, blue], at) => { context.fillStyle = `rgb(${red},${green},${blue})`; context.fillRect(at, 0, 1, 1); });
    bar.setAttribute("aria-hidden", "true");
    const [low, high] = this.plane ? this.span.map((value) => this.write(value)) : ["", ""];
    const what = this.plane ? MEASURES[this.measure].said : `no ${MEASURES[this.measure].said} in this trace`;
    const missing = this.trace.heat.is_whole ? "" : "What happened to caches outside forward passes is not shown.";
    this.legend.replaceChildren(kvtrace.element("span", {}, what), kvtrace.element("span", {}, low), bar, kvtrace.element("span", {}, this.plane ? `${high} or more` : ""), kvtrace.element("span", {}, missing));
  }

  zoomed() {
    super.zoomed();
    this.paint();
  }

  resize() {
    super.resize();
    if (this.colours) this.paint();
  }

  /* Pixels of the cells, and the part of the columns that they show. */
  get area() {
    const { left, right, top, bottom } = FRAME;
    const [start, end] = this.range;
    return {
      left, top, width: Math.max(1, this.field.clientWidth - left - right), height: this.field.clientHeight - top - bottom,
      from: (start / 100) * this.columns, to: (end / 100) * this.columns,
    };
  }

  paint() {
    const { left, top, width, height, from, to } = this.area;
    const ratio = window.devicePixelRatio || 1;
    const rows = this.trace.heat.rows.length;
    this.image.width = Math.round(width * ratio);
    this.image.height = Math.round(height * ratio);
    if (this.plane) paintCells(this.image, this.small, { plane: this.plane, rows, columns: this.columns, from, to, colour: this.colourOf(), isLongest: this.isLongest });
    if (this.plane && height / rows >= 5) ruleRows(this.image, rows, ratio, this.colours.card);
    const style = { image: this.image, x: left, y: top, width, height };
    this.chart.setOption({ graphic: { elements: [{ id: "cells", type: "image", silent: true, z: 0, style }, this.outline()] } });
  }

  colourOf() {
    const [low, high] = this.span;
    const { isLog } = MEASURES[this.measure];
    const place = isLog ? (value) => Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value) => value / high;
    return (value) => SCALE[Math.round(Math.min(1, Math.max(0, place(value))) * 255) || 0];
  }

  outline() {
    const { left, top, width, height, from, to } = this.area;
    const rows = this.trace.heat.rows.length;
    const cell = this.cell ?? { row: 0, column: -1 };
    const wide = width / (to - from);
    const x = left + (cell.column - from) * wide;
    const isSeen = this.cell !== null && x + wide >= left && x <= left + width;
    const shape = { x, y: top + (cell.row * height) / rows, width: Math.max(wide, 3), height: height / rows };
    return { id: "cell", type: "rect", silent: true, z: 10, invisible: !isSeen, shape, style: { fill: "none", stroke: "#fff", lineWidth: 2, shadowColor: "#000", shadowBlur: 3 } };
  }

  /* The pointer and the arrow keys point at cells. */
  follow() {
    this.chart.getZr().on("mousemove", ({ offsetX, offsetY }) => {
      const { left, top, width, height, from, to } = this.area;
      const row = Math.floor(((offsetY - top) / height) * this.trace.heat.rows.length);
      const column = Math.floor(from + ((offsetX - left) / width) * (to - from));
      const isInside = offsetX >= left && offsetX < left + width && offsetY >= top && offsetY < top + height;
      if (isInside) this.point({ row, column: Math.min(column, this.columns - 1) });
      else this.leave();
    });
    this.chart.getZr().on("globalout", () => this.leave());
    this.field.addEventListener("blur", () => this.leave());
  }

  pressed(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const move = moves[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) {
      if (event.key === "Escape") this.leave();
      super.pressed(event);
      return;
    }
    event.preventDefault();
    const { from, to, width } = this.area;
    const step = Math.max(1, Math.floor((to - from) / width));
    const start = this.cell ?? { row: -move[0], column: Math.floor(from) - move[1] * step };
    const clamp = (value, most) => Math.min(Math.max(value, 0), most - 1);
    const cell = { row: clamp(start.row + move[0], this.trace.heat.rows.length), column: clamp(start.column + move[1] * step, this.columns) };
    if (cell.column < from) this.pan(-0.5);
    if (cell.column >= to) this.pan(0.5);
    this.point(cell);
  }

  point(cell) {
    if (this.cell && cell.row === this.cell.row && cell.column === this.cell.column) return;
    this.cell = cell;
    this.chart.setOption({ graphic: { elements: [this.outline()] } });
    const [heading, pairs] = this.say(cell);
    this.tip.replaceChildren(hint(heading, pairs));
    this.tip.hidden = false;
    const { left, top, width, height, from, to } = this.area;
    const box = this.field.getBoundingClientRect();
    const x = box.left + left + ((cell.column + 0.5 - from) / (to - from)) * width;
    const y = box.top + top + ((cell.row + 1) / this.trace.heat.rows.length) * height + 8;
    const { offsetWidth, offsetHeight } = this.tip;
    this.tip.style.left = `${Math.max(8, Math.min(x - offsetWidth / 2, innerWidth - offsetWidth - 8))}px`;
    this.tip.style.top = `${y + offsetHeight < innerHeight ? y : y - offsetHeight - height / this.trace.heat.rows.length - 16}px`;
  }

  leave() {
    if (this.cell === null) return;
    this.cell = null;
    this.tip.hidden = true;
    this.chart.setOption({ graphic: { elements: [this.outline()] } });
  }

  /* What is in a cell: heading, and pairs. */
  say({ row, column }) {
    const { heat, name } = this.trace;
    const pass = heat.places[column];
    const until = heat.width > 1 ? `–${kvtrace.count(pass + heat.width - 1)}` : "";
    const pairs = [[null, heat.is_outside ? "position" : "pass", `${kvtrace.count(pass)}${until}`]];
    if (heat.position && !Number.isNaN(heat.position[column])) pairs.push([null, "position", kvtrace.count(heat.position[column])]);
    if (heat.phase && !Number.isNaN(heat.phase[column])) pairs.push([null, "phase", heat.phase[column] ? "decode" : "prefill"]);
    for (const measure of Object.keys(MEASURES).filter((one) => heat.planes[one])) {
      const { mean, max, unit } = heat.planes[measure];
      const at = row * this.columns + column;
      if (!mean.codes[at]) continue;
      const write = unit === "B" ? kvtrace.bytes : kvtrace.micros;
      const off = mean.error > 0.001 ? ` ± ${(mean.error * 100).toFixed(1)}%` : "";
      const most = max && heat.width > 1 ? `, at most ${write(max.scale[max.codes[at]])}` : "";
      pairs.push([null, MEASURES[measure].label.toLowerCase(), `${write(mean.scale[mean.codes[at]])}${off}${most}`]);
    }
    const whose = this.traces.length > 1 ? `${name}, ` : "";
    return [`${whose}${heat.rows[row]}${heat.classes[row] ? `, ${heat.classes[row]}` : ""}`, pairs];
  }

  /* Zooms to one operation and points at it. */
  find(trace, measure, step, row) {
    this.trace = this.traces.find((one) => one.number === trace) ?? this.trace;
    const { heat } = this.trace;
    const column = heat.places.findLastIndex((place) => place <= step);
    const share = 100 / this.columns;
    const half = Math.max(10, Math.min(60, this.columns / 20)) * share;
    this.choose.set(measure);
    this.measured(measure);
    this.show(Math.max(0, column * share - half), Math.min(100, column * share + half));
    this.field.scrollIntoView({ block: "center" });
    this.field.focus({ preventScroll: true });
    this.point({ row: Math.max(0, heat.rows.indexOf(row)), column });
  }

  rows() {
    const { heat, name } = this.trace;
    const groups = grouped(this.columns, 12);
    const mean = (row, from, to) => {
      const known = Array.from(this.plane.codes.subarray(row * this.columns + from, row * this.columns + to)).filter(Boolean);
      return known.length ? this.write(known.reduce((sum, code) => sum + this.plane.scale[code], 0) / known.length) : "–";
    };
    const passes = groups.map(([from, to]) => (heat.places[from] === heat.places[to - 1] ? kvtrace.count(heat.places[from]) : `${kvtrace.count(heat.places[from])}–${kvtrace.count(heat.places[to - 1])}`));
    const head = [`${name}, mean ${MEASURES[this.measure].said} by pass`, ...passes];
    return [head, this.plane ? heat.rows.map((row, at) => [row, ...groups.map(([from, to]) => mean(at, from, to))]) : []];
  }
};

function increases(values) {
  return values.length > 0 && values.every((value, at) => !Number.isNaN(value) && (at === 0 || value > values[at - 1]));
}
