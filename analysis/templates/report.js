// Draws the figures and runs the promotion inspector. No request ever leaves the page.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const figures = read("figures-data");
for (const place of document.querySelectorAll("figure[data-figure]")) {
  const { data, layout } = figures[place.dataset.figure];
  Plotly.newPlot(place, data, layout, { responsive: true, displayModeBar: false });
}

const cells = read("cells-data");
const byId = (id) => document.getElementById(id);
const fill = (select, names) => select.replaceChildren(...names.map((name, value) => new Option(name, value)));
const wanted = { all: () => true, flip: (item) => item.flip !== "", promoted: (item) => item.promotions > 0 };

function describe(part) {
  const margin = part.margin === null ? "" : `, margin ${part.margin.toFixed(3)}`;
  return `promoted ${JSON.stringify(part.text)}; the target's own choice: ${JSON.stringify(part.target)}${margin}`;
}

function render(part) {
  if (typeof part === "string") return document.createTextNode(part);
  const mark = document.createElement("mark");
  mark.textContent = part.text;
  mark.title = describe(part);
  mark.tabIndex = 0;
  for (const event of ["mouseenter", "focus", "click"]) mark.addEventListener(event, () => { byId("tip").textContent = mark.title; });
  return mark;
}

let shown = [];

function showItem() {
  const item = shown[byId("item").value];
  byId("tip").textContent = "";
  byId("ours").replaceChildren(...(item ? item.parts.map(render) : []));
  byId("vanilla").textContent = item ? (item.vanilla ?? "not measured") : "";
}

function showCell() {
  const cell = cells[byId("cell").value];
  shown = cell ? cell.items.filter(wanted[byId("filter").value]) : [];
  fill(byId("item"), shown.map((item) => `${item.item} (${item.promotions} promoted${item.flip ? ", " + item.flip : ""})`));
  byId("about").textContent = cell
    ? `${shown.length} items shown; the page holds ${cell.items.length} of ${cell.n_items}, flipped grades first (${cell.n_flipped} flipped against eagle3, or vanilla where eagle3 was not measured).`
    : "No traced cell with a lossy rule: run one with trace=true.";
  showItem();
}

fill(byId("cell"), cells.map((cell) => cell.name));
byId("cell").addEventListener("change", showCell);
byId("filter").addEventListener("change", showCell);
byId("item").addEventListener("change", showItem);
showCell();
