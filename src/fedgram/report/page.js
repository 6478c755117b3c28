"use strict";
// Tables sort by a click on a header; without this script they are read as they stand.
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, place) => {
    const cell = row.cells[place];
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  };
  const compare = (a, b, place, numeric, way) => {
    if (!numeric) return way * a.cells[place].textContent.localeCompare(b.cells[place].textContent);
    const [x, y] = [value(a, place), value(b, place)];
    return x === null || y === null ? (x === null) - (y === null) : way * (y - x);
  };
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
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
