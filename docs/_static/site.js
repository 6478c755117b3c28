// The list of pages is long: it begins at the page that is shown.
const shown = document.querySelector(".sidebar-tree .current-page > a")?.getBoundingClientRect();
const list = document.querySelector(".sidebar-scroll");
const room = list?.getBoundingClientRect();
if (shown && shown.bottom > room.top + 0.8 * room.height) {
  list.scrollTo({ top: shown.top - room.top - room.height / 3, behavior: "instant" });
}
