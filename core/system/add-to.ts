/** Adds to a list. @returns removes it again */
export function addTo<Entry>(list: Entry[], entry: Entry): () => void {
  list.push(entry)
  return () => {
    const at = list.indexOf(entry)
    if (at !== -1) list.splice(at, 1)
  }
}
