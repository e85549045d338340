/** Everything that one plugin has added to the services of others, so that it can be removed. */
export class Registrations {
  readonly #undos = new Set<() => unknown>()
  readonly #views = new Map<object, object>()
  readonly #plugin: string
  #isEnded = false

  constructor(plugin: string) {
    this.#plugin = plugin
  }

  /** Records how to remove something. @throws Error once everything was removed */
  add(undo: () => void): void {
    this.#requireOpen()
    this.#undos.add(undo)
  }

  /** A service as this plugin sees it: functions that `add…`, `on…` and `follow` return are called at its end. */
  view<Service>(service: Service): Service {
    if (typeof service !== 'object' || service === null) return service
    const known = this.#views.get(service)
    if (known) return known as Service
    const names = new Set<PropertyKey>()
    for (let at: object = service; at && at !== Object.prototype; at = Object.getPrototypeOf(at)) {
      for (const name of Reflect.ownKeys(at)) if (name !== 'constructor') names.add(name)
    }
    const isAdder = (name: PropertyKey) => typeof name === 'string' && /^(?:add|on|follow)(?![a-z])/.test(name)
    const members = service as Record<PropertyKey, unknown>
    const view = [...names].some(isAdder) ? Object.create(Object.getPrototypeOf(service)) : service
    this.#views.set(service, view)
    if (view === service) return service
    for (const name of names) {
      const value = members[name]
      if (typeof value !== 'function') Object.defineProperty(view, name, { get: () => members[name], enumerable: true })
      else view[name] = isAdder(name) ? this.#recorded(value.bind(service)) : value.bind(service)
    }
    return view
  }

  /** Removes everything, latest first. @param onFailure called with the errors of undo functions */
  undo(onFailure: (error: unknown) => void): void {
    this.#isEnded = true
    for (const undo of [...this.#undos].reverse()) {
      this.#undos.delete(undo)
      try {
        undo()
      } catch (error) {
        onFailure(error)
      }
    }
  }

  #recorded(add: (...values: unknown[]) => unknown) {
    return (...values: unknown[]): unknown => {
      this.#requireOpen()
      const undo = add(...values)
      if (typeof undo !== 'function') return undo
      this.#undos.add(undo as () => unknown)
      // A plugin that follows something again and again must not leave anything here.
      return () => {
        this.#undos.delete(undo as () => unknown)
        return undo()
      }
    }
  }

  #requireOpen(): void {
    if (this.#isEnded) throw new Error(`The plugin "${this.#plugin}" was left out, so it cannot add anything.`)
  }
}
