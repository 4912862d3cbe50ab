/* Cells as pixels: an image of one zoom of the map, from as many cells as it has room for. */
"use strict";

/* Matplotlib's cividis, which looks alike to people with any kind of colour vision, and in grey. */
const CIVIDIS = ["00224e", "123570", "3b496c", "575d6d", "707173", "8a8678", "a59c74", "c3b369", "e1cc55", "fee838"];
const SCALE = (() => {
  const stops = CIVIDIS.map((text) => [0, 2, 4].map((at) => parseInt(text.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, step) => {
    const at = (step / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    return stops[low].map((part, place) => Math.round(part + (stops[low + 1][place] - part) * (at - low)));
  });
})();

/* The columns [from, to), which may be fractions, fill the image; `small` is a canvas to work on. */
function paintCells(image, small, { plane, rows, columns, from, to, colour, isLongest }) {
  const first = Math.floor(from);
  const shown = Math.min(columns, Math.ceil(to)) - first;
  const across = Math.min(shown, image.width);
  if (across < 1) return;
  small.width = across;
  small.height = rows;
  const pixels = new ImageData(across, rows);
  for (let row = 0; row < rows; row++) {
    for (let at = 0; at < across; at++) {
      const begin = first + Math.floor((at * shown) / across);
      const end = Math.max(begin + 1, first + Math.floor(((at + 1) * shown) / across));
      const value = valueOf(plane, row * columns + begin, row * columns + end, isLongest);
      if (Number.isNaN(value)) continue;
      pixels.data.set(colour(value), (row * across + at) * 4);
      pixels.data[(row * across + at) * 4 + 3] = 255;
    }
  }
  small.getContext("2d").putImageData(pixels, 0, 0);
  const context = image.getContext("2d");
  const cell = image.width / (to - from);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, (first - from) * cell, 0, shown * cell, image.height);
}

/* Of the cells [begin, end): their mean, or the longest; NaN where there is none. */
function valueOf({ codes, scale }, begin, end, isLongest) {
  let sum = 0;
  let known = 0;
  let most = -1;
  for (let at = begin; at < end; at++) {
    if (!codes[at]) continue;
    const value = scale[codes[at]];
    sum += value;
    known += 1;
    if (value > most) most = value;
  }
  return known ? (isLongest ? most : sum / known) : NaN;
}

/* Thin gaps between the rows. */
function ruleRows(image, rows, ratio, colour) {
  const context = image.getContext("2d");
  context.fillStyle = colour;
  for (let row = 1; row < rows; row++) context.fillRect(0, Math.round((row * image.height) / rows - ratio / 2), image.width, ratio);
}
