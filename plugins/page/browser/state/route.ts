import { signal } from '@preact/signals'

/** The parts of the URL after `#/`, such as `['chat', '<id>']`. */
export const route = signal(read())
addEventListener('hashchange', () => {
  route.value = read()
})

function read(): string[] {
  return location.hash
    .replace(/^#\/?/, '')
    .split('/')
    .filter(part => part !== '')
    .map(part => {
      try {
        return decodeURIComponent(part)
      } catch {
        // A URL typed by hand, such as `#/100%`.
        return part
      }
    })
}

/** The URL of a view, for links. */
export const linkTo = (...parts: string[]) => `#/${parts.map(encodeURIComponent).join('/')}`

/** Shows a view. `replace` replaces the current history entry. */
export function go(parts: string[], replace = false): void {
  const address = linkTo(...parts)
  if (replace) history.replaceState(null, '', address)
  else history.pushState(null, '', address)
  route.value = parts
}
