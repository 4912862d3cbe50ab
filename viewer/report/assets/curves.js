/* The prompt in chunks, and memory over tokens. */
"use strict";

kvtrace.Chunks = class extends kvtrace.Plot {
  constructor(traces) {
    super("chunks", 250);
    this.traces = traces;
    this.addZoom();
    this.draw();
  }

  option(colours) {
    const said = "Time of each chunk of the prompt.";
    const names = legend(colours, this.traces.map(({ name }) => name), this.field.clientWidth, false);
    const most = Math.max(...this.traces.map(({ chunks }) => chunks.step.length));
    const label = { color: colours.soft, hideOverlap: true };
    return {
      ...basis(colours, said),
      grid: { left: 64, right: 20, top: 34 + names.height, bottom: 72 },
      xAxis: { ...across(colours, this.traces.length > 1 ? "chunk" : "positions"), type: "category", data: Array.from({ length: most }, (_, place) => this.label(place)), min: undefined, max: undefined, axisLabel: label },
      yAxis: axis(colours, { name: "ms", axisLabel: { color: colours.soft, formatter: kvtrace.round } }),
      legend: names.option,
      dataZoom: zooms(colours, [0]),
      series: this.traces.map((trace, number) => ({ type: "bar", id: `chunks-${number}`, name: trace.name, barMaxWidth: 44, color: colours.traces[number], data: Array.from(trace.chunks.took_ms) })),
      tooltip: { ...basis(colours, said).tooltip, axisPointer: { type: "shadow" }, formatter: (found) => this.hint([].concat(found)) },
    };
  }

  /* Of one recording the positions of the chunk, of several its number. */
  label(place) {
    const { position, tokens } = this.traces[0].chunks;
    if (this.traces.length > 1 || Number.isNaN(position[place])) return kvtrace.count(place + 1);
    return tokens[place] > 1 ? `${kvtrace.count(position[place])}–${kvtrace.count(position[place] + tokens[place] - 1)}` : kvtrace.count(position[place]);
  }

  say({ chunks }, place) {
    const tokens = chunks.tokens[place];
    return `${kvtrace.millis(chunks.took_ms[place])}, ${kvtrace.count(tokens)} token${tokens === 1 ? "" : "s"}`;
  }

  hint(found) {
    const place = found[0].dataIndex;
    return hint(`chunk ${place + 1}`, found.map(({ color, seriesIndex }) => [color, this.traces[seriesIndex].name, this.say(this.traces[seriesIndex], place)]));
  }

  rows() {
    const rows = this.traces.flatMap(({ name, chunks }) => Array.from(chunks.step, (step, place) => [
      name, kvtrace.count(place + 1), Number.isNaN(chunks.position[place]) ? "" : kvtrace.count(chunks.position[place]), kvtrace.count(chunks.tokens[place]),
      kvtrace.millis(chunks.took_ms[place]), kvtrace.short(chunks.tokens[place] / (chunks.took_ms[place] / 1e3)),
    ]).slice(0, 200));
    return [["trace", "chunk", "position", "tokens", "took", "tokens/s"], rows];
  }
};

kvtrace.Memory = class extends kvtrace.Plot {
  constructor(name, traces, curves) {
    super(name, 330);
    Object.assign(this, { traces, curves });
    this.axisName = traces[0].memory.axis === "position" ? "tokens" : "forward pass";
    this.addZoom();
    this.draw();
  }

  /* A colour for each recording and model where there are several, else for each curve. */
  lines() {
    const owners = this.traces.flatMap((trace) => trace.memory.models.map((model) => ({ trace, model })));
    return owners.flatMap(({ trace, model }, number) => this.curves.filter(({ key }) => model[key]).map((curve) => {
      const whose = trace.memory.models.length > 1 ? `${model.model}: ${curve.label}` : curve.label;
      return { colour: owners.length > 1 ? number % 8 : curve.colour, curve, name: prefixed(this.traces, trace, whose), xs: model.x, ys: model[curve.key] };
    }));
  }

  option(colours) {
    const lines = this.lines();
    const names = legend(colours, lines.map(({ name }) => name), this.field.clientWidth);
    const said = `${this.heading}: ${lines.map((line) => `${line.name}, at last ${kvtrace.bytes(line.ys.at(-1))}`).join("; ")}.`;
    return {
      ...basis(colours, said),
      grid: { left: 72, right: 20, top: 14 + names.height, bottom: 72 },
      xAxis: across(colours, this.axisName),
      yAxis: axis(colours, { axisLabel: { color: colours.soft, formatter: kvtrace.roundBytes } }),
      legend: names.option,
      dataZoom: zooms(colours, [0]),
      series: lines.map((line, place) => {
        const colour = colours.traces[line.colour];
        return { type: "line", id: `line-${place}`, name: line.name, color: colour, data: points(line.xs, line.ys), step: "end", showSymbol: line.xs.length < 3, sampling: "minmax", emphasis: { disabled: true }, lineStyle: { width: line.curve.width, type: line.curve.type, color: colour } };
      }),
      tooltip: { ...basis(colours, said).tooltip, formatter: (found) => this.hint([].concat(found)) },
    };
  }

  hint(found) {
    return hint(`${this.axisName} ${kvtrace.count(found[0].value[0])}`, found.map(({ color, seriesName, value }) => [color, seriesName, Number.isNaN(value[1]) ? "–" : kvtrace.bytes(value[1])]));
  }

  rows() {
    const rows = this.traces.flatMap((trace) => trace.memory.models.flatMap((model) => grouped(model.x.length, 40).map(([, to]) => [
      prefixed(this.traces, trace, model.model), kvtrace.count(model.x[to - 1]), ...this.curves.map(({ key }) => (model[key] ? kvtrace.bytes(model[key][to - 1]) : "–")),
    ])));
    return [["model", this.axisName, ...this.curves.map(({ label }) => label)], rows];
  }
};
