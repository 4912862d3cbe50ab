/* What all charts share. What a trace says reaches the page as text, never as markup. */
"use strict";

/* Okabe and Ito's colours, which people with any kind of colour vision tell apart; lighter ones first on dark. */
kvtrace.palette = {
  light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A7A00"],
  dark: ["#56B4E9", "#E69F00", "#2FC29A", "#E39AC2", "#F0E442", "#FF7A3D", "#FFFFFF", "#7FA8FF"],
};

kvtrace.isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

kvtrace.colours = () => {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  const traces = kvtrace.palette[kvtrace.isDark() ? "dark" : "light"];
  return { text: of("text"), soft: of("soft"), line: of("line"), card: of("card"), page: of("page"), traces };
};

/* A figure of the page with a chart in it: zoom by buttons, keys, pinch and slider; redrawn for another theme. */
kvtrace.Plot = class Plot {
  constructor(name, height) {
    this.figure = document.querySelector(`[data-chart="${name}"]`);
    this.field = this.figure.querySelector(".plot");
    this.tools = this.figure.querySelector(".tools");
    this.heading = this.figure.querySelector("h3").textContent;
    this.field.style.height = `${height}px`;
    this.range = [0, 100];
    this.chart = echarts.init(this.field, null, { renderer: "canvas" });
    this.chart.on("datazoom", () => this.zoomed());
    this.field.addEventListener("keydown", (event) => this.pressed(event));
    new ResizeObserver(() => this.resize()).observe(this.field);
    this.figure.querySelector("details").addEventListener("toggle", () => this.tabulate());
    kvtrace.plots.push(this);
  }

  resize() {
    this.chart.resize({ width: this.field.clientWidth });
  }

  addZoom() {
    const group = kvtrace.element("div", { class: "buttons", role: "group", "aria-label": "Zoom" });
    const add = (text, label, act) => group.append(kvtrace.button(text, act, `${label}: ${this.heading}`));
    add("−", "Zoom out", () => this.zoom(2));
    add("+", "Zoom in", () => this.zoom(0.5));
    add("All", "Show all", () => this.show(0, 100));
    this.tools.append(group);
  }

  show(start, end) {
    this.chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, start, end });
  }

  zoom(factor) {
    const [start, end] = this.range;
    const half = Math.max(0.005, ((end - start) * factor) / 2);
    const middle = Math.min(Math.max((start + end) / 2, half), Math.max(half, 100 - half));
    this.show(Math.max(0, middle - half), Math.min(100, middle + half));
  }

  pan(share) {
    const [start, end] = this.range;
    const by = Math.min(Math.max((end - start) * share, -start), 100 - end);
    this.show(start + by, end + by);
  }

  zoomed() {
    const { start, end } = this.chart.getOption().dataZoom[0];
    this.range = [start, end];
  }

  pressed(event) {
    const acts = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), "0": () => this.show(0, 100),
      ArrowLeft: () => this.pan(-0.25), ArrowRight: () => this.pan(0.25),
    };
    const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : acts[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  }

  draw() {
    const [start, end] = this.range;
    const option = this.option(kvtrace.colours());
    for (const zoom of option.dataZoom ?? []) Object.assign(zoom, { start, end });
    this.chart.setOption(option, { notMerge: true });
  }

  tabulate() {
    const details = this.figure.querySelector("details");
    if (details.open) kvtrace.fillTable(details.querySelector(".scroll"), this.heading, ...this.rows());
  }
};

kvtrace.plots = [];

/* The options that all charts share. */
function basis(colours, said) {
  return {
    animation: false,
    backgroundColor: "transparent",
    textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: colours.text },
    aria: { enabled: true, label: { description: said } },
    tooltip: {
      trigger: "axis", confine: true, transitionDuration: 0,
      axisPointer: { type: "line", lineStyle: { color: colours.soft } },
      backgroundColor: colours.card, borderColor: colours.line, padding: 0, extraCssText: "box-shadow:none",
    },
  };
}

function axis(colours, more) {
  return {
    type: "value",
    nameTextStyle: { color: colours.soft },
    axisLine: { lineStyle: { color: colours.line } },
    axisTick: { lineStyle: { color: colours.line } },
    axisLabel: { color: colours.soft, hideOverlap: true },
    splitLine: { lineStyle: { color: colours.line, opacity: 0.6 } },
    ...more,
  };
}

function across(colours, name, more) {
  const label = { color: colours.soft, formatter: kvtrace.count, hideOverlap: true };
  return axis(colours, { name, nameLocation: "middle", nameGap: 26, splitLine: { show: false }, axisLabel: label, min: "dataMin", max: "dataMax", ...more });
}

function zooms(colours, axes) {
  const slider = {
    type: "slider", xAxisIndex: axes, bottom: 10, height: 16, brushSelect: false, showDetail: false,
    borderColor: "transparent", backgroundColor: colours.page, fillerColor: "rgba(127,127,127,0.16)", handleStyle: { color: colours.card, borderColor: colours.soft },
    moveHandleSize: 0, dataBackground: { lineStyle: { color: colours.line }, areaStyle: { color: colours.line } },
    selectedDataBackground: { lineStyle: { color: colours.soft }, areaStyle: { color: colours.line } },
  };
  return [{ type: "inside", xAxisIndex: axes, zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false }, slider];
}

/* A tooltip: a heading and pairs, as elements. */
function hint(heading, pairs) {
  const list = kvtrace.element("dl", {});
  for (const [colour, label, value] of pairs) {
    const mark = kvtrace.element("i", {});
    mark.style.background = colour ?? "transparent";
    const term = kvtrace.element("dt", {}, label);
    term.prepend(mark);
    list.append(term, kvtrace.element("dd", {}, value));
  }
  const whole = kvtrace.element("div", { class: "hint" });
  whole.append(kvtrace.element("strong", {}, heading), list);
  return whole;
}

const points = (xs, ys) => Array.from(xs, (x, place) => [x, ys[place]]);

/* Where there are several curves, what they are; `rows` is how many lines of text that takes. */
function legend(colours, names, width, isLines = true) {
  const rows = Math.max(1, Math.ceil(names.reduce((sum, name) => sum + 58 + name.length * 7, 0) / Math.max(width, 1)));
  const option = { show: names.length > 1, top: 0, left: 0, data: names, itemWidth: 26, itemGap: 18, itemStyle: isLines ? { opacity: 0 } : {}, textStyle: { color: colours.text } };
  return { option, height: names.length > 1 ? rows * 24 : 0 };
}

const prefixed = (traces, trace, text) => (traces.length > 1 ? `${trace.name}: ${text}` : text);

/* The least and the most of the known values. */
function bounds(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/* At most so many ranges [from, to) of about equal length. */
function grouped(count, most) {
  const groups = Math.min(count, most);
  return Array.from({ length: groups }, (_, place) => [Math.floor((place * count) / groups), Math.floor(((place + 1) * count) / groups)]);
}
