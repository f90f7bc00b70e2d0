// Shows at once what the browser would show as a title after a moment, and marks the same moment in all panels.
(() => {
  const tip = document.getElementById("tip");
  let marked = [];
  const clear = () => {
    marked.forEach((e) => e.classList.remove("on"));
    marked = [];
    tip.hidden = true;
  };
  document.querySelectorAll(".hit").forEach((hit) => {
    const title = hit.querySelector("title");
    hit.dataset.tip = title.textContent;
    title.remove();
  });
  document.addEventListener("pointermove", (event) => {
    const hit = event.target.closest && event.target.closest(".hit");
    clear();
    if (!hit) return;
    const same = '.hit[data-i="' + hit.dataset.i + '"]';
    marked = [...hit.closest("div").querySelectorAll(same)];
    marked.forEach((e) => e.classList.add("on"));
    tip.textContent = hit.dataset.tip;
    tip.hidden = false;
    const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 16;
    const y = below + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 12 : below;
    tip.style.left = Math.max(8, x) + "px";
    tip.style.top = y + "px";
  });
  document.addEventListener("pointerleave", clear);
})();
