import { effect, signal } from '@preact/signals'
import { notifications } from './preferences.ts'
import { models, pulls } from './server-state.ts'

/** Whether something has finished since the user looked away, for the title of the tab. */
export const isUnseen = signal(false)
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) isUnseen.value = false
})

/** Marks the tab, and notifies the user if that is wanted, unless the page is visible. */
export function tellFinished(text: string): void {
  if (!document.hidden) return
  isUnseen.value = true
  if (notifications.value === '') return
  try {
    const shown = new Notification('corral', { body: text, tag: text })
    shown.onclick = () => {
      window.focus()
      shown.close()
    }
  } catch {
    // Phones allow notifications only to installed pages. The title is marked anyway.
  }
}

/** Turns notifications on, if the user agrees, or off. */
export async function switchNotifications(): Promise<void> {
  const isOn = notifications.value !== ''
  notifications.value = !isOn && (await Notification.requestPermission()) === 'granted' ? 'yes' : ''
}

const withoutVariant = (name: string) => name.toLowerCase().replace(/:.*/, '')

/** Calls back with each model whose download ends while the page is open. */
export function watchDownloads(onFinished: (model: string) => void): void {
  let running = pulls.peek()
  let known = new Map<string, string>()
  /** Models that have changed since their downloads began, and downloads that have ended. Either may come first. */
  const changed = new Map<string, string>()
  const ended = new Set<string>()
  effect(() => {
    const [before, now] = [running, pulls.value]
    for (const { name, modified_at: at } of models.value) {
      if (known.get(name) !== at) changed.set(withoutVariant(name), name)
    }
    const missing = (those: typeof now, these: typeof now) =>
      those.filter(({ id }) => these.every(pull => pull.id !== id))
    for (const { model } of missing(before, now)) ended.add(withoutVariant(model))
    for (const { model } of missing(now, before)) {
      ended.delete(withoutVariant(model))
      changed.delete(withoutVariant(model))
    }
    running = now
    known = new Map(models.value.map(({ name, modified_at: at }) => [name, at]))
    for (const name of ended) {
      const model = changed.get(name)
      if (model === undefined) continue
      ended.delete(name)
      changed.delete(name)
      onFinished(model)
    }
  })
}
