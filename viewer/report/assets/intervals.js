/* Intervals between tokens over positions, and what happened to caches meanwhile. */
"use strict";

kvtrace.Intervals = class extends kvtrace.Plot {
  constructor(traces) {
    const sorts = [...new Set(traces.flatMap((trace) => trace.events.map((event) => event.label)))];
    const shown = sorts.filter((sort) => traces.some((trace) => trace.events.some((one) => one.label === sort && one.position.some((at) => !Number.isNaN(at)))));
    super("intervals", 330 + shown.length * 20);
    Object.assign(this, { traces, sorts: shown, isLog: false });
    this.tools.append(kvtrace.toggle("Log scale", (isOn) => { this.isLog = isOn; this.draw(); }));
    this.addZoom();
    this.draw();
  }

  option(colours) {
    const lanes = this.sorts.length * 20;
    const isAlone = this.traces.length === 1;
    const said = `Interval between tokens by position. ${this.traces.map((one) => `${one.name}: ${this.describe(one)}`).join("; ")}.`;
    const names = legend(colours, this.traces.map(({ name }) => name), this.field.clientWidth / 2);
    const label = Object.fromEntries(this.traces.map((one) => [one.name, `${one.name} · ${this.describe(one)}`]));
    const frame = { left: 64, right: isAlone ? 112 : 20 };
    const grids = [{ ...frame, top: 34 + names.height, bottom: 72 + (lanes ? lanes + 10 : 0) }];
    const xs = [across(colours, lanes ? "" : "token position", lanes ? { axisLabel: { show: false }, axisTick: { show: false } } : {})];
    const ys = [axis(colours, { type: this.isLog ? "log" : "value", name: "ms", axisLabel: { color: colours.soft, formatter: kvtrace.round } })];
    if (lanes) {
      grids.push({ ...frame, height: lanes, bottom: 72 });
      xs.push(across(colours, "token position", { gridIndex: 1 }));
      ys.push({ ...axis(colours, { type: "category", gridIndex: 1, data: this.sorts, inverse: true }), axisTick: { show: false }, axisLabel: { color: colours.soft, width: 56, overflow: "truncate" } });
    }
    this.align(xs);
    return {
      ...basis(colours, said),
      grid: grids, xAxis: xs, yAxis: ys,
      axisPointer: { link: [{ xAxisIndex: "all" }] },
      legend: { ...names.option, formatter: (name) => label[name] ?? name },
      dataZoom: zooms(colours, lanes ? [0, 1] : [0]),
      series: this.traces.flatMap((trace, number) => this.series(trace, number, colours)),
      tooltip: { ...basis(colours, said).tooltip, formatter: (found) => this.hint([].concat(found)) },
    };
  }

  describe({ intervals }) {
    if (intervals.p50_ms === null) return "no intervals";
    return `median ${kvtrace.millis(intervals.p50_ms)}, p99 ${kvtrace.millis(intervals.p99_ms)}`;
  }

  /* Both axes cover the same positions, so that marks stand below their tokens. */
  align(axes) {
    const all = this.traces.flatMap((trace) => [trace.intervals.position, ...trace.events.map((event) => event.position)]);
    const extremes = all.map(bounds);
    const low = Math.min(...extremes.map(([least]) => least));
    const high = Math.max(...extremes.map(([, most]) => most));
    if (Number.isFinite(low)) axes.forEach((one) => Object.assign(one, { min: low, max: Math.max(high, low + 1) }));
  }

  series(trace, number, colours) {
    const { position, median_ms, longest_ms, p50_ms, p99_ms, requests, each } = trace.intervals;
    const colour = colours.traces[number];
    const isLine = requests <= 1;
    const isAlone = this.traces.length === 1;
    const mark = (value, text, type) => ({
      yAxis: value, lineStyle: { color: isAlone ? colours.soft : colour, type, width: 1 },
      label: { show: isAlone, formatter: () => `${text} ${kvtrace.millis(value)}`, position: "end", color: colours.text },
    });
    const lines = p50_ms === null ? [] : [mark(p50_ms, "median", "solid"), mark(p99_ms, "p99", "dashed")];
    const base = { type: isLine ? "line" : "scatter", showSymbol: position.length < 3, symbolSize: 3, large: !isLine, sampling: "minmax", emphasis: { disabled: true }, color: colour };
    const main = { ...base, id: `interval-${number}`, name: trace.name, data: points(position, median_ms), lineStyle: { width: 1.2, color: colour }, markLine: { silent: true, symbol: "none", animation: false, data: lines } };
    const slow = { ...base, id: `longest-${number}`, name: `${trace.name}, longest of ${each}`, data: points(position, longest_ms ?? []), lineStyle: { width: 1, color: colour, opacity: 0.45 } };
    const events = trace.events.filter((event) => this.sorts.includes(event.label)).map((event, place) => ({
      type: "scatter", id: `event-${number}-${place}`, name: event.label, xAxisIndex: 1, yAxisIndex: 1, symbol: "rect", symbolSize: [3, 13], color: colour,
      data: Array.from(event.position, (x, at) => [x, event.label, event.count[at], event.copied[at]]).filter(([x]) => !Number.isNaN(x)),
    }));
    return [main, ...(longest_ms ? [slow] : []), ...events];
  }

  hint(found) {
    if (!found.length) return "";
    const pairs = found.map(({ color, seriesId, seriesName, value }) => {
      if (seriesId.startsWith("event")) return [color, value[1], `×${kvtrace.count(value[2])}${value[3] ? `, ${kvtrace.bytes(value[3])} copied` : ""}`];
      return [color, this.traces.length > 1 || seriesId.startsWith("longest") ? seriesName : "interval", kvtrace.millis(value[1])];
    });
    return hint(`position ${kvtrace.count(found[0].value[0])}`, pairs);
  }

  rows() {
    const rows = this.traces.flatMap((trace) => grouped(trace.intervals.position.length, 40).map(([from, to]) => {
      const { position, median_ms, longest_ms } = trace.intervals;
      const [first, last] = bounds(position.slice(from, to));
      const events = trace.events.flatMap((event) => {
        const total = event.count.reduce((sum, count, at) => sum + (event.position[at] >= first && event.position[at] <= last ? count : 0), 0);
        return total ? [`${event.label} ×${kvtrace.count(total)}`] : [];
      });
      const took = median_ms.slice(from, to);
      return [trace.name, `${kvtrace.count(first)}–${kvtrace.count(last)}`, kvtrace.millis(kvtrace.quantile(took, 0.5)), kvtrace.millis(Math.max(...(longest_ms ?? median_ms).slice(from, to))), events.join(", ")];
    }));
    return [["trace", "positions", "median", "longest", "events"], rows];
  }
};
