/* Elements of the page, tables that sort, and what goes to the clipboard. Text goes in as text. */
"use strict";

kvtrace.element = (name, attributes, text) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

kvtrace.button = (text, act, label) => {
  const button = kvtrace.element("button", { type: "button" }, text);
  if (label) button.setAttribute("aria-label", label);
  button.addEventListener("click", act);
  return button;
};

kvtrace.toggle = (text, act) => {
  const button = kvtrace.button(text, () => {
    const isOn = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", isOn);
    act(isOn);
  });
  button.setAttribute("aria-pressed", "false");
  return button;
};

/* A row of radio buttons; `set` chooses without acting. */
kvtrace.choice = (legend, options, act) => {
  const group = kvtrace.element("fieldset", { class: "choice" });
  group.append(kvtrace.element("legend", {}, legend));
  const name = `choice-${document.querySelectorAll("fieldset").length}-${legend}`;
  for (const [value, text] of options) {
    const input = kvtrace.element("input", { type: "radio", name, value });
    input.checked = value === options[0][0];
    input.addEventListener("change", () => act(value));
    const label = kvtrace.element("label", {});
    label.append(input, kvtrace.element("span", {}, text));
    group.append(label);
  }
  group.set = (value) => group.querySelectorAll("input").forEach((input) => { input.checked = input.value === String(value); });
  return group;
};

kvtrace.fillTable = (place, caption, headings, rows) => {
  const table = kvtrace.element("table", {});
  table.append(kvtrace.element("caption", {}, caption));
  const head = table.createTHead().insertRow();
  for (const text of headings) head.append(kvtrace.element("th", { scope: "col" }, text));
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((text, at) => line.append(at ? kvtrace.element("td", {}, text) : kvtrace.element("th", { scope: "row" }, text)));
  }
  place.replaceChildren(table);
};

/* A heading sorts its column: numbers largest first, text from A; again the other way. What has no value stays last. */
kvtrace.sortable = (table) => {
  const headings = [...[...table.tHead.rows].at(-1).cells];
  headings.forEach((heading, column) => heading.querySelector("button")?.addEventListener("click", () => {
    const isText = !heading.classList.contains("number");
    const before = heading.getAttribute("aria-sort");
    const isRising = before === "none" ? isText : before === "descending";
    headings.forEach((other) => other.hasAttribute("aria-sort") && other.setAttribute("aria-sort", other !== heading ? "none" : isRising ? "ascending" : "descending"));
    const body = table.tBodies[0];
    const keyed = [...body.rows].map((row) => ({ row, value: row.cells[column].dataset.value }));
    const numeric = keyed.every(({ value }) => value === "" || !Number.isNaN(Number(value)));
    const compare = (a, b) => (numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true }));
    keyed.sort((a, b) => (a.value === "") - (b.value === "") || (isRising ? 1 : -1) * (a.value === "" ? 0 : compare(a.value, b.value)));
    body.append(...keyed.map(({ row }) => row));
  }));
};

kvtrace.copy = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = kvtrace.element("textarea", { class: "hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
};
