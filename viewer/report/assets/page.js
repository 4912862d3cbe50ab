/* Sets the page going. */
"use strict";

(async () => {
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const named = () => {
    theme.textContent = kvtrace.isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", `Switch to ${kvtrace.isDark() ? "light" : "dark"} colours`);
  };
  const redraw = () => {
    named();
    kvtrace.plots.forEach((plot) => plot.draw());
  };
  theme.addEventListener("click", () => {
    root.dataset.theme = kvtrace.isDark() ? "light" : "dark";
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let before;
  window.addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; redraw(); });
  window.addEventListener("afterprint", () => { if (before) root.dataset.theme = before; else delete root.dataset.theme; redraw(); });
  named();

  /* By hand, since in the frame of a notebook such a link would leave the page. */
  document.querySelectorAll('a[href^="#"]').forEach((link) => link.addEventListener("click", (event) => {
    const target = document.getElementById(link.getAttribute("href").slice(1));
    event.preventDefault();
    target.tabIndex = -1;
    target.focus({ preventScroll: true });
    target.scrollIntoView();
  }));

  document.querySelectorAll("table.sortable").forEach(kvtrace.sortable);
  const csv = kvtrace.read("csv");
  document.querySelectorAll("[data-csv]").forEach((button) => button.addEventListener("click", async () => {
    await kvtrace.copy(csv[Number(button.dataset.csv)]);
    const text = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = text; }, 1500);
  }));

  const traces = await kvtrace.unpack(kvtrace.read("data"));
  traces.forEach((trace, number) => { trace.number = number; });
  const has = (name) => document.querySelector(`[data-chart="${name}"]`) !== null;
  if (has("intervals")) new kvtrace.Intervals(traces);
  if (has("chunks")) new kvtrace.Chunks(traces);
  if (has("heat")) kvtrace.heat = new kvtrace.Heat(traces);
  if (has("memory")) {
    new kvtrace.Memory("memory", traces, [
      { key: "resident", label: "resident", type: "solid", width: 2.2, colour: 0 },
      { key: "allocated", label: "allocated", type: "dashed", width: 1.6, colour: 1 },
      { key: "fp16_baseline", label: "as 16-bit numbers", type: "dotted", width: 1.8, colour: 2 },
    ]);
  }
  if (has("mlx")) {
    new kvtrace.Memory("mlx", traces, [
      { key: "mlx_active", label: "in use", type: "solid", width: 2, colour: 0 },
      { key: "mlx_peak", label: "highest so far", type: "dashed", width: 1.6, colour: 1 },
    ]);
  }
  document.querySelectorAll("button.show").forEach((button) => button.addEventListener("click", () => {
    const { trace, measure, step, row } = button.dataset;
    kvtrace.heat.find(Number(trace), measure, Number(step), row);
  }));
  root.dataset.ready = "true";
})();
