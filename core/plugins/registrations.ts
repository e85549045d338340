interface Addition {
  add(): unknown
  /** Absent while it is not added. */
  undo: (() => unknown) | undefined
}

/** Everything that one plugin has added to the services of others, so that it can be removed. */
export class Registrations {
  readonly #additions = new Set<Addition>()
  readonly #views = new Map<object, object>()
  readonly #plugin: string
  #state: 'deferred' | 'open' | 'ended'

  /** @param isDeferred whether additions take effect at `commit` */
  constructor(plugin: string, isDeferred = false) {
    this.#plugin = plugin
    this.#state = isDeferred ? 'deferred' : 'open'
  }

  /** Records how to remove something. @throws Error once everything was removed */
  add(undo: () => void): void {
    this.#requireOpen()
    this.#additions.add({ add: () => undo, undo })
  }

  /** Adds everything that was deferred, or removed by `undo`. @throws the error of an addition; call `undo` then */
  commit(): void {
    for (const addition of this.#additions) addition.undo ??= toUndo(addition.add())
    this.#state = 'open'
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
    this.#state = 'ended'
    for (const addition of [...this.#additions].reverse()) {
      const { undo } = addition
      addition.undo = undefined
      try {
        undo?.()
      } catch (error) {
        onFailure(error)
      }
    }
  }

  #recorded(add: (...values: unknown[]) => unknown) {
    return (...values: unknown[]): unknown => {
      this.#requireOpen()
      const addition: Addition = { add: () => add(...values), undo: undefined }
      if (this.#state === 'open') {
        const result = addition.add()
        addition.undo = toUndo(result)
        if (!addition.undo) return result
      }
      this.#additions.add(addition)
      // A plugin that follows something again and again must not leave anything here.
      return () => {
        this.#additions.delete(addition)
        return addition.undo?.()
      }
    }
  }

  #requireOpen(): void {
    if (this.#state === 'ended') {
      throw new Error(`The plugin "${this.#plugin}" was left out, so it cannot add anything.`)
    }
  }
}

const toUndo = (result: unknown) => (typeof result === 'function' ? (result as () => unknown) : undefined)
